"""Which networks of transformers are captured: one row for each family, written into docs/breadth.md.

python benchmarks/breadth.py [NAME ...] [--fresh] [--limit SECONDS]

Every family is built and captured in a process of its own, so that a crash or a hang is a row like any other.
Rows that the page already has are kept, so that a run goes on where the last one stopped; families that are named
are captured again, and with `--fresh` all of them are.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from breadth_families import FAMILIES, Family

PAGE = Path(__file__).parent.parent / "docs" / "breadth.md"
START, END = "<!-- rows: begin -->", "<!-- rows: end -->"
HEAD = (
    "| family | class | kind | parameters | inference by | operations | seconds | training by | operations | seconds "
    "| remarks |\n|---|---|---|--:|---|--:|--:|---|--:|--:|---|"
)
PASSES = ("inference", "training")
OPTIMIZER = "adamw"


# ---- in the process of one family ------------------------------------------------------------------


def capture_family(name: str) -> None:
    """Print one JSON line on the model of a family, then one on each pass."""
    import torch

    from placewright.capture import fake_tensors
    from placewright.capture.folder import from_folder

    family = FAMILIES[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, fake_tensors():
        (Path(folder) / "config.json").write_text(json.dumps(family.config))
        for kind in PASSES:
            model, args, kwargs = from_folder(
                folder, batch=family.batch, length=family.length, training=kind == "training"
            )
            if kind == "inference":
                count = sum(parameter.numel() for parameter in model.parameters())
                print(json.dumps({"class": type(model).__name__, "parameters": count}), flush=True)
            print(json.dumps({kind: capture_pass(model, args, kwargs, kind, family)}), flush=True)


def capture_pass(model: Any, args: Any, kwargs: Any, kind: str, family: Family) -> dict[str, Any]:
    """Return what one capture gave: its way, operations, seconds and notes, or why there is none."""
    from placewright.capture import capture_step
    from placewright.errors import PlacewrightError

    if kind == "training":
        freeze(model, family.frozen)
    try:
        found = capture_step(model, args, kwargs, optimizer=OPTIMIZER if kind == "training" else None)
    except PlacewrightError as error:
        return {"fault": " ".join(str(error).split())}
    notes = [" ".join(note.split()) for note in found.notes]
    return {"way": found.method, "operations": found.graph.n_ops, "seconds": found.seconds, "notes": notes}


def freeze(model: Any, names: tuple[str, ...]) -> None:
    """Take the gradient from the parameters that these globs name; a glob that names none is an error."""
    held = dict(model.named_parameters())
    for glob in names:
        found = fnmatch.filter(held, glob)
        if not found:
            raise SystemExit(f"frozen: no parameter is called {glob}")
        for name in found:
            held[name].requires_grad_(False)


# ---- in the process of the table -------------------------------------------------------------------


def row_of(name: str, limit_s: float) -> str:
    """Return the row of a family, captured in a process of its own."""
    family = FAMILIES[name]
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
    found: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            lines = child.communicate(timeout=limit_s)[0]
            why = f"the process ended with {child.returncode}" if child.returncode else ""
        except subprocess.TimeoutExpired:
            child.kill()
            lines, why = child.communicate()[0], f"stopped after {limit_s:.0f} s"
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    for line in lines.splitlines():
        found |= json.loads(line)
    if child.returncode and said and "stopped" not in why:
        why += f": {said[-1]}"
    return formatted(name, family, found, why)


def formatted(name: str, family: Family, found: dict[str, Any], why: str) -> str:
    """Return one row of the table."""
    cells = [name, str(found.get("class", "")), family.kind, f"{found['parameters']:,}" if found else "-"]
    remarks = []
    for kind in PASSES:
        made = found.get(kind, {"fault": why or "nothing was reported"})
        if "fault" in made:
            cells += ["failed", "-", "-"]
            remarks.append(f"{kind} failed: {shortened(made['fault'])}")
        else:
            cells += [made["way"], f"{made['operations']:,}", f"{made['seconds']:.1f}"]
            remarks += [f"{kind}: {shortened(note)}" for note in made["notes"]]
    if family.frozen:
        remarks.append(f"frozen for training, as no gradient reaches all of it: {', '.join(family.frozen)}")
    cells.append("; ".join(remarks).replace("|", "/"))
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def shortened(text: str) -> str:
    """Return a reason without the paths of this machine, of at most 300 characters."""
    words = [word.rpartition("site-packages/")[2] for word in text.split()]
    text = " ".join(words)
    return text if len(text) <= 300 else text[:297] + "..."


def kept_rows() -> dict[str, str]:
    """Return the rows that the page has, by family."""
    text = PAGE.read_text() if PAGE.exists() else ""
    _, _, inside = text.partition(START)
    rows = [line for line in inside.partition(END)[0].splitlines() if line.startswith("| ")]
    return {name: row for row in rows if (name := row.split("|")[1].strip()) in FAMILIES}


def write(rows: dict[str, str]) -> str:
    """Write the page with these rows in the order of the families; return the line of counts."""
    shown = [rows[name] for name in FAMILIES if name in rows]
    columns = {"inference": 5, "training": 8}
    done = {kind: sum(row.split("|")[column].strip() != "failed" for row in shown) for kind, column in columns.items()}
    versions = f"torch {version('torch')}, transformers {version('transformers')}"
    counts = (
        f"{len(shown)} families: {done['inference']} captured for inference, {done['training']} for training "
        f"with {OPTIMIZER} ({versions}, {time.strftime('%Y-%m-%d')})."
    )
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n{counts}\n\n{HEAD}\n" + "".join(f"{row}\n" for row in shown) + END + after)
    return counts


def main() -> None:
    """Capture what is asked for and missing, and write the page after every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="families to capture again; without any, the rest")
    parser.add_argument("--fresh", action="store_true", help="capture every family again")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for one family (default 300)")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        capture_family(given.child)
        return
    if unknown := [name for name in given.names if name not in FAMILIES]:
        parser.error(f"no family is called {', '.join(unknown)}; known are {', '.join(FAMILIES)}")
    rows = {} if given.fresh else kept_rows()
    for name in given.names or [name for name in FAMILIES if name not in rows]:
        rows[name] = row_of(name, given.limit)
        print(rows[name], flush=True)
        write(rows)
    print(write(rows))


if __name__ == "__main__":
    main()
