"""A model too large for its GPU: what `auto` plans, beside two plans made by hand.

    python benchmarks/streaming_case.py [--seconds 10] [--page docs/benchmarks-methods.md]

A Llama-like decoder of 16 layers and 3.26 billion bfloat16 parameters, on the preset h200x1 with the GPU capped at
4 GiB, one sequence of 1, 16, 128 or 1,024 tokens. By hand: everything computed on the GPU with the weights of every
second layer streamed; and three layers computed on the CPU beside their weights while five stream. Each with the
default window and with room for two layers, the better one counts. `auto` is told of neither.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import placewright as pw
from placewright.checks import format_seconds
from placewright.graph import PARAMETER
from placewright.problem import Problem

LENGTHS = (1, 16, 128, 1024)
LAYERS = 16
GIB = 1 << 30
START, END = "<!-- streaming -->", "<!-- /streaming -->"


def problem(length: int) -> Problem:
    """The problem at one length."""
    import torch

    from placewright.capture import capture_step, fake_tensors
    from placewright.zoo.layers import tokens
    from placewright.zoo.llama import Decoder, Sizes, SwiGLU

    with fake_tensors():
        sizes = Sizes(4096, LAYERS, 32, 32, 11008, vocabulary=2688)
        usual = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Decoder(sizes, lambda s: SwiGLU(s.width, s.hidden))
        finally:
            torch.set_default_dtype(usual)
        words = tokens(sizes.vocabulary, 1, length)
        graph = capture_step(model, (words,), optimizer=None, name=f"llama-16/{length}").graph
    return Problem(graph, pw.machine("h200x1").with_memory({"gpu:0": 4 * GIB}))


def by_hand(task: Problem, streamed: list[int], offloaded: list[int]) -> float:
    """Seconds of a plan by hand, at the better of two windows; infinite where it does not fit."""
    graph, machine = task.graph, task.machine
    cpu, gpu = machine.device("cpu:0"), machine.device("gpu:0")
    layer = np.array([int(s.split(".")[1]) if s.startswith("layers.") else -1 for s in graph.scopes])
    held = graph.phase == PARAMETER
    devices = np.full(graph.n_ops, gpu)
    devices[np.isin(layer, streamed) & held] = cpu
    devices[np.isin(layer, offloaded)] = cpu
    devices = devices[task.leaders][task.groups]  # views go with their bases
    one_layer = int(graph.tensor_bytes[graph.persistent & (layer[graph.tensor_op] == 0)].sum())
    values = []
    for window in (-1, 2 * one_layer):
        windows = [-1] * len(machine.devices)
        windows[gpu] = window
        outcome = pw.simulate(task, task.placement(devices, windows_bytes=windows))
        values.append(outcome.value_s if outcome.feasible else float("inf"))
    return min(values)


def main() -> None:
    """Print a row for every length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--page", type=Path, help="a page with marks to put the table between")
    given = parser.parse_args()
    titles = (
        "tokens",
        "every second layer streamed",
        "three on the CPU, five streamed",
        "auto",
        "its gap to the bound",
    )
    lines = [f"| {' | '.join(titles)} |", "|--:|--:|--:|--:|--:|"]
    print("\n".join(lines))
    for length in LENGTHS:
        task = problem(length)
        every_second = by_hand(task, list(range(0, LAYERS, 2)), [])
        mixed = by_hand(task, [1, 4, 7, 10, 13], [3, 8, 14])
        pw.simulate(task, task.placement(np.zeros(task.n_ops, int)))
        result = pw.search(task, "auto", stop=pw.stop.Seconds(given.seconds), seed=0)
        value = format_seconds(result.value_s) if result.feasible else "does not fit"
        gap = "-" if result.gap is None else f"{result.gap:.1%}"
        lines.append(f"| {length:,} | {format_seconds(every_second)} | {format_seconds(mixed)} | {value} | {gap} |")
        print(lines[-1], flush=True)
    if given.page:
        head, _, rest = given.page.read_text().partition(START)
        table = "\n".join(lines)
        given.page.write_text(f"{head}{START}\n{table}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
