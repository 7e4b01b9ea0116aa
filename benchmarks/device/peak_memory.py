"""Simulated peaks of everything on one GPU beside torch's own count, for a training step and an inference pass.

    PYTHONPATH=src python benchmarks/device/peak_memory.py OUT.json [NETWORK ...]

A step is zero_grad, forward, backward, and a fused optimiser; parameters, gradients, state and inputs are on the
GPU. Two steps warm up, so that the state exists; then torch.cuda.max_memory_allocated is that of the next step. Each
measurement has a process of its own, since libraries keep what they once took. What they keep, and the inputs, which
the caller holds to the end of a step, are measured apart. `python benchmarks/device/peak_memory.py --page OUT.json
docs/memory.md` puts the table into the page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NETWORKS = (
    "resnet-50", "vgg-16", "inception-v3", "vit-large", "bert-large", "gpt2-medium", "unet-sd1", "nmt-2", "rnnlm",
    "llama-1b",
)  # fmt: skip
BATCHES = {"llama-1b": 4}
"""Samples of a step, where the network's own batch leaves a GPU nearly empty."""
START, END = "<!-- peak_memory -->", "<!-- /peak_memory -->"
MIB, GIB = 1 << 20, 1 << 30


def main() -> None:
    """Measure every network and write a row for each as soon as it is there."""
    if sys.argv[1] == "--child":
        print(json.dumps(measured(sys.argv[2], sys.argv[3] == "training")))
        return
    if sys.argv[1] == "--page":
        write_page(json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
        return
    import torch

    out, names = Path(sys.argv[1]), sys.argv[2:] or NETWORKS
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    rows: list[dict[str, Any]] = []
    for name in names:
        for kind in ("training", "inference"):
            command = [sys.executable, __file__, "--child", name, kind]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # while this process simulates
            expected = simulated(name, kind == "training")
            lines = child.communicate()[0].splitlines()
            if child.returncode:
                raise SystemExit(f"{name}, {kind}: the measurement ended with {child.returncode}")
            row = {"network": name, "training": kind == "training", **expected, **json.loads(lines[-1])}
            rows.append(row)
            print(json.dumps(row), flush=True)
            out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def simulated(name: str, training: bool) -> dict[str, Any]:
    """Return the peak on one GPU with everything on it."""
    import placewright as pw
    from placewright import zoo
    from placewright.graph import INPUT

    graph = zoo.load(name, training=training, batch=BATCHES.get(name), update_order="end" if training else "early")
    problem = pw.Problem(graph, pw.machine("h200x1"))
    gpu = problem.machine.device("gpu:0")
    outcome = pw.simulate(problem, problem.placement([gpu] * graph.n_ops))
    inputs = graph.phase[graph.tensor_op] == INPUT
    return {
        "operations": graph.n_ops,
        "batch": BATCHES.get(name, zoo.network(name).batch),
        "simulated_bytes": int(outcome.peak_bytes[problem.machine.pool_index["gpu:0"]]),
        "persistent_bytes": graph.persistent_bytes,
        "input_bytes": int(graph.tensor_bytes[inputs].sum()),
    }


def measured(name: str, training: bool) -> dict[str, Any]:
    """Return the peak that torch counts, what was held before the step, and what libraries keep of that."""
    import torch

    from placewright import zoo

    fused = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, fused=True),
        "momentum": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, fused=True),
        "adam": lambda p: torch.optim.Adam(p, lr=1e-5, fused=True),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
    }
    network = zoo.network(name)
    model, inputs = zoo.build(name, batch=BATCHES.get(name), training=training)
    model, inputs = model.cuda().train(training), [tensor.cuda() for tensor in inputs]
    optimizer = fused[network.optimizer](model.parameters()) if training else None

    def step() -> None:
        if optimizer is None:
            with torch.no_grad():
                model(*inputs)
            return
        optimizer.zero_grad(set_to_none=True)
        model(*inputs).backward()
        optimizer.step()

    for _ in range(2):
        step()
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    kept = before - torch.cuda.memory_allocated()
    return {"measured_bytes": peak, "held_bytes": held, "library_bytes": kept}


# ---- the page ----------------------------------------------------------------------------------


def write_page(kept: dict[str, Any], page: Path) -> None:
    """Put a kept run between the marks of a page."""
    titles = ("network", "step", "batch", "operations", "measured", "simulated", "ratio", "activations", "libraries",
              "inputs", "ratio without libraries")  # fmt: skip
    lines = [" | ".join(titles), " | ".join(["---", "---", *["--:"] * (len(titles) - 2)])]
    for row in kept["rows"]:
        peak = row["measured_bytes"]
        cells = (
            row["network"], "training" if row["training"] else "inference", f"{row['batch']}",
            f"{row['operations']:,}", f"{peak / GIB:.3f} GiB", f"{row['simulated_bytes'] / GIB:.3f} GiB",
            f"{row['simulated_bytes'] / peak:.3f}", f"{1 - row['held_bytes'] / peak:.0%}",
            f"{row['library_bytes'] / MIB:.0f} MiB", f"{row['input_bytes'] / MIB:.1f} MiB",
            f"{row['simulated_bytes'] / (peak - row['library_bytes']):.3f}",
        )  # fmt: skip
        lines.append(" | ".join(cells))
    about = f"{kept['device']}, torch {kept['torch']}."
    head, _, rest = page.read_text().partition(START)
    table = "\n".join(f"| {line} |" for line in lines)
    page.write_text(f"{head}{START}\n{about}\n\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
