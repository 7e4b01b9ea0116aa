"""The problems of the benchmarks of methods, by name.

`STEP` are steps of real networks, profiles and drawn graphs on machines of the presets; `TARNAWSKI` the nine published
throughput workloads (`max_load`). `build(entry, cache)` makes one. Graphs that are captured are kept as `.json.gz`
files in the folder `cache`, so that a run captures each network once; delete the folder after a change to the capture.

    PYTHONPATH=src python benchmarks/suite_problems.py [NAME ...]     # captures what is missing, and lists sizes
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import placewright as pw
from placewright import zoo
from placewright.problem import Problem

WORKLOADS = Path(os.environ.get("PLACEWRIGHT_WORKLOADS", Path(__file__).parents[2] / "shared" / "workloads"))
"""The profiled workloads, read in place; they are not part of this repository."""
CACHE = Path(tempfile.gettempdir()) / "placewright-suite"


@dataclass(frozen=True)
class Entry:
    """A problem: what graph, on what machine, with which pools capped."""

    graph: str
    """`inception-v3` or `layered/3` (zoo), `pipedream:vgg16`, `tarnawski:latency/op_resnet50_inference`."""
    machine: str = ""
    """A preset; nothing for a workload that brings its own."""
    memory: str = ""
    """Caps, such as `gpu:*=2GiB`."""
    training: bool = True
    batch: int | None = None
    objective: str = "step"

    @property
    def name(self) -> str:
        """Graph, machine and caps in words."""
        what = self.graph + ("" if self.training else " inference") + (f" batch {self.batch}" if self.batch else "")
        return what + (f" on {self.machine}" if self.machine else "") + (f" {self.memory}" if self.memory else "")

    @property
    def captured(self) -> bool:
        """Whether the graph takes long to make."""
        return ":" not in self.graph and not self.graph.startswith(("layered/", "series-parallel/", "fork-join/"))


def _profiles(machine: str, *names: str, memory: str = "") -> list[Entry]:
    return [Entry(f"pipedream:{name}", machine, memory) for name in names]


STEP: tuple[Entry, ...] = (
    # networks of the papers: branches, or recurrences that can run as a wavefront
    Entry("inception-v3", "k40x4"),
    Entry("inception-v3-b1", "k80x4"),
    Entry("nasnet-a-mobile", "k40x4"),
    Entry("nasnet-a-large", "v100x8"),
    Entry("rnnlm", "k40x2"),
    Entry("rnnlm-4", "k40x4"),
    Entry("nmt-2", "k40x2"),
    Entry("nmt-4", "k40x4"),
    Entry("nmt-8", "k40x8"),
    # little to run side by side: a method must do no harm
    Entry("resnet-50", "k40x2"),
    Entry("vit-large", "mixed-4090-3060"),
    # more than a card can hold
    Entry("bert-large", "k40x4", "gpu:*=4GiB"),
    Entry("unet-sd1", "rtx4060-laptop"),
    Entry("gpt2-xl", "rtx4090x2"),
    Entry("llama-1b", "h200x1", "gpu:0=4GiB"),
    Entry("llama-7b", "rtx3060x1", training=False),
    Entry("llama-7b", "v100x8"),
    Entry("mixtral-8x7b", "a100x8", training=False),
    Entry("llama-70b", "a100x8", training=False),
    # profiles of PipeDream
    *_profiles("k40x2", "inception_v3"),
    *_profiles("v100x8", "nasnetamobile"),
    *_profiles("k40x4", "vgg16", memory="gpu:*=4GiB"),
    *_profiles("k40x4", "densenet121", memory="gpu:*=1GiB"),
    *_profiles("v100x8", "resnet50", memory="gpu:*=2GiB"),
    # workloads of Tarnawski et al., which bring their machine; several accelerators are needed
    *(
        Entry(f"tarnawski:latency/{name}")
        for name in (
            "layer_bert24_inference",
            "layer_gnmt_inference",
            "op_bert_l-3_inference",
            "op_resnet50_inference",
        )
    ),
    # drawn graphs
    Entry("layered/64", "k40x4"),
    Entry("layered/65", "two-nodes-4gpu"),
    Entry("series-parallel/64", "k40x4"),
    Entry("fork-join/64", "k40x4"),
    Entry("fork-join/65", "v100x8"),
    Entry("placeto-cifar10/0", "k40x4"),
    Entry("placeto-ptb/0", "k40x2"),
    Entry("placeto-nmt/0", "k40x2"),
)

TARNAWSKI: tuple[Entry, ...] = tuple(
    Entry(f"tarnawski:throughput/{name}", objective="max_load")
    for name in (
        "layer_bert24_inference",
        "layer_bert24_training",
        "layer_gnmt_inference",
        "layer_inceptionv3_inference",
        "layer_resnet50_inference",
        "op_bert_l-3_inference",
        "op_bert_l-3_training",
        "op_bert_l-6_inference",
        "op_resnet50_inference",
    )
)

PUBLISHED_MS = {
    "layer_bert24_inference": (17.790, 17.715),
    "layer_bert24_training": (41.746, 39.790),
    "layer_gnmt_inference": (32.911, 31.731),
    "layer_inceptionv3_inference": (51.552, 51.552),
    "layer_resnet50_inference": (33.775, 33.507),
    "op_bert_l-3_inference": (27.919, 21.908),
    "op_bert_l-3_training": (65.303, 54.207),
    "op_bert_l-6_inference": (29.580, 28.332),
    "op_resnet50_inference": (124.349, 124.349),
}
"""Of each throughput workload the contiguous optimum and the best known value; README of the workloads."""


def named(patterns: Iterable[str], entries: Iterable[Entry] = STEP + TARNAWSKI) -> list[Entry]:
    """The entries whose names match any pattern (a glob, or a part of the name); all without patterns."""
    wanted = list(patterns)
    found = [
        entry
        for entry in entries
        if not wanted or any(w in entry.name or fnmatch.fnmatch(entry.name, w) for w in wanted)
    ]
    if not found:
        raise SystemExit(
            f"no problem is named {', '.join(wanted)}; the names are\n" + "\n".join(e.name for e in entries)
        )
    return found


def build(entry: Entry, cache: Path = CACHE) -> Problem:
    """The problem of an entry."""
    if ":" in entry.graph:
        kind, _, name = entry.graph.partition(":")
        path = WORKLOADS / ("pipedream" if kind == "pipedream" else "tarnawski2020") / name
        workload = pw.read_workload(path.with_name(path.name + (".txt" if kind == "pipedream" else ".json")))
        graph, machine = workload.graph, workload.machine
    else:
        graph, machine = _graph(entry, cache), None
    machine = machine or pw.machine(entry.machine)
    if entry.memory:
        pattern, _, size = entry.memory.rpartition("=")
        names = fnmatch.filter([pool.name for pool in machine.pools], pattern)
        machine = machine.with_memory(dict.fromkeys(names, pw.parse_bytes(size)))
    return Problem(graph, machine, objective=entry.objective)


def cached(entry: Entry, cache: Path) -> Path:
    """Where the captured graph of an entry is kept."""
    parts = [entry.graph.replace("/", "-"), *([] if entry.training else ["inference"])]
    return cache / ("-".join([*parts, *([f"b{entry.batch}"] if entry.batch else [])]) + ".json.gz")


def _graph(entry: Entry, cache: Path) -> pw.OpGraph:
    """A graph of the zoo: drawn, read from the cache, or captured into it."""
    if not entry.captured:
        return zoo.load(entry.graph)
    path = cached(entry, cache)
    if not path.is_file():
        member = "/" in entry.graph
        graph = zoo.load(entry.graph) if member else zoo.load(entry.graph, training=entry.training, batch=entry.batch)
        cache.mkdir(parents=True, exist_ok=True)
        pw.write_graph(graph, path)
    return pw.read_graph(path)  # so that the first run and later ones see the same


def main() -> None:
    """Build every problem named, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--exact", action="store_true", help="take the names as they are")
    parser.add_argument("--cache", type=Path, default=CACHE)
    given = parser.parse_args()
    for entry in [e for e in STEP if e.name in given.names] if given.exact else named(given.names):
        began = time.perf_counter()
        problem = build(entry, given.cache)
        took = time.perf_counter() - began
        print(
            f"{entry.name}: {problem.n_ops:,} operations, {problem.n_groups:,} groups, made in {took:.1f} s", flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
