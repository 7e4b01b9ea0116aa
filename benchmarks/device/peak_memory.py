"""Simulated peaks of everything on one GPU beside torch's own count, for a training step and an inference pass.

    PYTHONPATH=src python benchmarks/device/peak_memory.py OUT.json [NETWORK ...]

A step is zero_grad, forward, backward, and a fused optimiser; parameters, gradients, state and inputs are on the
GPU. Two steps warm up, so that the state exists; then torch.cuda.max_memory_allocated is that of the next step.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path

import torch

import placewright as pw
from placewright import zoo
from placewright.graph import BACKWARD, FORWARD

NETWORKS = ("resnet-50", "vgg-16", "inception-v3", "vit-large", "bert-large", "gpt2-medium", "unet-sd1", "nmt-2",
            "rnnlm", "llama-1b")  # fmt: skip
BATCHES = {"vit-large": 32, "gpt2-medium": 4, "llama-1b": 4}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-4, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-5, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
}


def main() -> None:
    """Measure every network and write a row for each as soon as it is there."""
    out, names = Path(sys.argv[1]), sys.argv[2:] or NETWORKS
    rows = []
    for name in names:
        for training in (True, False):
            started = time.perf_counter()
            row = {"network": name, "training": training, **simulated(name, training), **measured(name, training)}
            row["ratio"] = row["simulated_bytes"] / row["measured_bytes"]
            row["seconds"] = round(time.perf_counter() - started, 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
            about = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
            out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


def simulated(name: str, training: bool) -> dict[str, object]:
    """Return the peak on one GPU with everything on it, and how much of it are activations."""
    graph = zoo.load(name, training=training, batch=BATCHES.get(name), update_order="end" if training else "early")
    problem = pw.Problem(graph, pw.machine("h200x1"))
    gpu = problem.machine.device("gpu:0")
    outcome = pw.simulate(problem, problem.placement([gpu] * graph.n_ops))
    peak = outcome.peak_bytes[problem.machine.pool_index["gpu:0"]]
    computing = int(((graph.phase == FORWARD) | (graph.phase == BACKWARD)).sum())
    return {
        "operations": graph.n_ops,
        "computing": computing,
        "batch": BATCHES.get(name, zoo.network(name).batch),
        "simulated_bytes": int(peak),
        "persistent_bytes": graph.persistent_bytes,
        "simulated_s": outcome.value_s,
    }


def measured(name: str, training: bool) -> dict[str, object]:
    """Return the peak that torch counts, and the seconds of a step."""
    gc.collect()
    torch.cuda.empty_cache()
    network = zoo.network(name)
    model, inputs = zoo.build(name, batch=BATCHES.get(name), training=training)
    model, inputs = model.cuda().train(training), [tensor.cuda() for tensor in inputs]
    optimizer = OPTIMIZERS[network.optimizer](model.parameters()) if training else None

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
    torch.cuda.synchronize()
    if optimizer is not None:
        optimizer.zero_grad(set_to_none=True)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated()
    return {"measured_bytes": peak, "held_bytes": held, "activation_share": 1 - held / peak, "step_s": seconds}


if __name__ == "__main__":
    main()
