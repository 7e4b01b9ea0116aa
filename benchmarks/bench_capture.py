"""How long capture takes, how much memory, and how much of that is torch's own tracing.

    python benchmarks/bench_capture.py [NETWORK ...] [--json FILE]

Each network's training step is captured in a process of its own, as `placewright.zoo.load` does it. Before anything
is printed the graph is held to what it must be: parameter and state bytes by formula, an update and a store for every
parameter, a gradient for every update. The raw trace is torch's part alone, in the same process and right after:
torch.export, then the joint graph of the exported module, of the same model with nothing of ours. Python's garbage
collector walks over the growing graph again and again; capture holds it back, so torch's part is timed both ways.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NETWORKS = ("llama-7b", "llama-70b", "nmt-8", "resnet-152", "mixtral-8x7b")
AIMS = {"llama-7b": (12.0, 3.0), "llama-70b": (60.0, 3.0)}
"""Seconds and GiB of resident memory."""
RAW_AIM = 1.3
"""Times the raw trace, for the network with the most operations."""
STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
GIB = 1 << 30


# ---- in the process of one network -----------------------------------------------------------------


def measure(name: str) -> dict[str, Any]:
    """Capture a network, check its graph, and time torch's own part."""
    from placewright import zoo

    started = time.perf_counter()
    import torch

    from placewright.capture import capture_step, fake_tensors

    imported = time.perf_counter()
    network = zoo.network(name)
    with fake_tensors():
        model, inputs = zoo.build(name)
        built = time.perf_counter()
    found = capture_step(model, inputs, optimizer=network.optimizer)
    captured = time.perf_counter()
    peak = peak_bytes()
    check(found.graph, model, network.optimizer)
    with fake_tensors():
        model, inputs = zoo.build(name)
        began = time.perf_counter()
        nodes = raw_trace(model, inputs)
        raw = time.perf_counter() - began
        model, inputs = zoo.build(name)
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        raw_trace(model, inputs)
        uncollected = time.perf_counter() - began
    return {
        "network": name, "operations": found.graph.n_ops, "import_s": imported - started, "build_s": built - imported,
        "capture_s": captured - built, "raw_s": raw, "raw_uncollected_s": uncollected, "raw_nodes": nodes,
        "peak_rss_bytes": peak, "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


def raw_trace(model: Any, inputs: Any) -> int:
    """Trace a training step by the interfaces of torch alone; return how many nodes there are."""
    import torch
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    program = torch.export.export(model, tuple(inputs))
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, program.module(), tuple(inputs))
        return len(joint.graph_module.graph.nodes)


def check(graph: Any, model: Any, optimizer: str) -> None:
    """Hold a graph to what it must be."""
    from placewright.graph import PARAMETER, STORE, UPDATE

    held = list(model.parameters())
    sizes = [parameter.numel() * parameter.element_size() for parameter in held]
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    constants = [i for i in range(graph.n_ops) if graph.op_names[i].startswith("constant.")]
    constant = sum(int(graph.tensor_bytes[graph.out_start[i]]) for i in constants)
    steps = 4 * len(held) if optimizer.startswith("adam") else 0
    expected = sum(sizes) * (1 + STATES[optimizer]) + steps + buffers + constant
    assert graph.persistent_bytes == expected, (graph.persistent_bytes, expected)
    states = len(held) if STATES[optimizer] else 0
    assert int((graph.phase == UPDATE).sum()) == len(held)
    assert int((graph.phase == STORE).sum()) >= len(held) + states
    assert int((graph.phase == PARAMETER).sum()) == len(held) + states + len(list(model.buffers())) + len(constants)


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


# ---- in the process of the table -------------------------------------------------------------------


def main() -> None:
    """Measure each network and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=NETWORKS, help=f"default: {' '.join(NETWORKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure(given.names[0])))
        return
    rows = []
    print("| network | operations | capture | raw trace | without collector | ratios | import, build | peak resident |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in given.names:
        command = [sys.executable, str(Path(__file__).resolve()), name, "--child"]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        row = json.loads(lines[-1])
        rows.append(row)
        print(
            f"| {name} | {row['operations']:,} | {row['capture_s']:.1f} s | {row['raw_s']:.1f} s "
            f"| {row['raw_uncollected_s']:.1f} s | {row['capture_s'] / row['raw_s']:.2f}, "
            f"{row['capture_s'] / row['raw_uncollected_s']:.2f} | {row['import_s'] + row['build_s']:.1f} s "
            f"| {row['peak_rss_bytes'] / GIB:.2f} GiB |",
            flush=True,
        )
    print()
    for row in rows:
        for line in aims(row):
            print(line)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def aims(row: dict[str, Any]) -> list[str]:
    """Return a line for every aim that a network has."""
    lines = []
    if row["network"] in AIMS:
        seconds, gib = AIMS[row["network"]]
        took, held = row["build_s"] + row["capture_s"], row["peak_rss_bytes"] / GIB
        lines.append(f"{row['network']}: {took:.1f} s of {seconds:g}: {'met' if took <= seconds else 'missed'}")
        lines.append(f"{row['network']}: {held:.2f} GiB of {gib:g}: {'met' if held <= gib else 'missed'}")
    if row["network"] == "nmt-8":
        ratio, enough = row["capture_s"] / row["raw_s"], row["operations"] >= 40_000
        lines.append(f"nmt-8: {row['operations']:,} operations of 40,000: {'met' if enough else 'missed'}")
        lines.append(f"nmt-8: {ratio:.2f} times the raw trace of {RAW_AIM}: {'met' if ratio <= RAW_AIM else 'missed'}")
    return lines


if __name__ == "__main__":
    main()
