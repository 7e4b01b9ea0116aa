"""Families of graphs for learning and testing: members are drawn by number, and the split is fixed.

Three are synthetic and made here, of operations with amounts but no network behind them: `layered`,
`series-parallel` and `fork-join`, each one inference pass. Three are those of the Placeto paper, training
steps of networks with random architectures (`placeto.py`). Member k of a family is the same graph in every
process. docs/families.md says what is drawn and why.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from placewright.errors import InputError, UnknownNameError
from placewright.graph import OpGraph
from placewright.operations import Operation, Tensor, build_graph
from placewright.zoo.draws import between, generator, pick, shuffled, whole

Range = tuple[int, int]
Share = float

_PLACETO = ("placeto-cifar10", "placeto-ptb", "placeto-nmt")
_MAX_MEMBER = 2**31 - 1
_ROWS = 64
"""Rows of every activation; a row is of whole float32 numbers."""


@dataclass(frozen=True)
class Amounts:
    """How much the operations of a synthetic graph do, in ranges (least, most) that are drawn from logarithmically.

    By default an operation takes 15 us (a launch) to 10 ms on a Tesla K40, and a tensor 6 us to 4 ms to it.
    """

    flops: tuple[float, float] = (3e7, 2.3e10)
    """Of an operation that computes."""
    tensor_bytes: Range = (64 << 10, 32 << 20)
    """Of every output, rounded to whole rows."""
    parameter_bytes: Range = (16 << 10, 16 << 20)
    workspace_bytes: Range = (1 << 20, 64 << 20)
    compute_share: Share = 0.6
    """Operations that compute (a matmul or a convolution); the others only move bytes."""
    parameter_share: Share = 0.7
    """Computing operations that have a parameter."""
    workspace_share: Share = 0.25
    """Computing operations that need memory while they run."""

    def __post_init__(self) -> None:
        _check_range(self, "flops", 1, 1e18)
        for name in ("tensor_bytes", "parameter_bytes", "workspace_bytes"):
            _check_range(self, name, 4 * _ROWS, 1 << 40)
        for name in ("compute_share", "parameter_share", "workspace_share"):
            _check_share(self, name)


@dataclass(frozen=True)
class LayeredParams:
    """Sizes of `layered` graphs: layers of operations that read what earlier layers made."""

    layers: Range = (8, 24)
    width: Range = (1, 12)
    """Operations of a layer."""
    reads: Range = (1, 3)
    """Inputs of an operation, before what nobody in the next layer would read is added to one of them."""
    skip_share: Share = 0.1
    """Inputs after the first that come from any earlier layer rather than the one before."""
    amounts: Amounts = field(default_factory=Amounts)

    def __post_init__(self) -> None:
        for name in ("layers", "width", "reads"):
            _check_range(self, name, 1, 1000)
        _check_share(self, "skip_share")


@dataclass(frozen=True)
class SeriesParallelParams:
    """Sizes of `series-parallel` graphs, which grow from one edge, an operation at a time."""

    operations: Range = (40, 240)
    series_share: Share = 0.5
    """New operations that cut an edge in two; the others make a way around it."""
    amounts: Amounts = field(default_factory=Amounts)

    def __post_init__(self) -> None:
        _check_range(self, "operations", 2, 20_000)
        _check_share(self, "series_share")


@dataclass(frozen=True)
class ForkJoinParams:
    """Sizes of `fork-join` graphs: stages one after the other, each a fork, branches that are chains, and a join."""

    stages: Range = (2, 8)
    branches: Range = (2, 8)
    length: Range = (1, 6)
    """Operations of a branch."""
    amounts: Amounts = field(default_factory=Amounts)

    def __post_init__(self) -> None:
        _check_range(self, "stages", 1, 1000)
        _check_range(self, "branches", 2, 1000)
        _check_range(self, "length", 1, 1000)


Params = LayeredParams | SeriesParallelParams | ForkJoinParams


class _Node(NamedTuple):
    """One operation of a structure: its name, its scope, and the names of the operations that it reads."""

    name: str
    scope: str
    reads: tuple[str, ...]


def names() -> tuple[str, ...]:
    """Return the families."""
    return ("layered", "series-parallel", "fork-join", *_PLACETO)


def graph(family: str, member: int, params: Params | None = None) -> OpGraph:
    """Return one graph of a family; `params` gives a synthetic family other sizes than its own."""
    rng, name = _start(family, member)
    if family in _PLACETO:
        if params is not None:
            raise InputError(f"the family {family!r} takes no params; those of {', '.join(_SYNTHETIC)} can be varied")
        from placewright.zoo import placeto

        return placeto.step(placeto.draw(family, rng), name)
    kind, structure = _SYNTHETIC[family]
    if params is not None and type(params) is not kind:
        raise InputError(f"the family {family!r} takes {kind.__name__}, found {type(params).__name__}")
    sizes = params or kind()
    return build_graph(name, _operations(structure(sizes, rng), sizes.amounts, rng))


def split(family: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the members to learn from and those to test on: fixed, disjoint, in increasing order.

    A Placeto family has 32 members, halved at random. Of a synthetic one the first 64 and the next 32 count.
    """
    _check_family(family)
    if family not in _PLACETO:
        return tuple(range(64)), tuple(range(64, 96))
    order = shuffled(generator(f"split of {family}", 0), 32)
    return tuple(sorted(order[:16])), tuple(sorted(order[16:]))


def _start(family: str, member: int) -> tuple[np.random.Generator, str]:
    """Return the generator and the name of a member."""
    _check_family(family)
    try:
        k = operator.index(member)
    except TypeError:
        raise InputError(f"member is {member!r}; a whole number is expected") from None
    if not 0 <= k <= _MAX_MEMBER:
        raise InputError(f"member is {k}; 0 to {_MAX_MEMBER} is allowed")
    return generator(family, k), f"{family}/{k}"


def _check_family(family: str) -> None:
    if family not in names():
        raise UnknownNameError("family", family, names())


def _check_range(owner: object, name: str, low: float, high: float) -> None:
    value = getattr(owner, name)
    pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | float) for end in value)
    numbers = float if name == "flops" else int
    if not pair or not low <= value[0] <= value[1] <= high or any(numbers(end) != end for end in value):
        what = "numbers" if numbers is float else "whole numbers"
        raise InputError(f"{name} is {value!r}; {what} (least, most) within {low:g} to {high:g} are allowed")


def _check_share(owner: object, name: str) -> None:
    value = getattr(owner, name)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} is {value!r}; a share from 0 to 1 is allowed")


def _layered(params: LayeredParams, rng: np.random.Generator) -> list[_Node]:
    """Layers in order. Who is not in the last layer is read by the next one."""
    layers: list[list[str]] = []
    nodes: list[_Node] = []
    for depth in range(whole(rng, *params.layers)):
        names_here = [f"layer{depth}.{k}" for k in range(whole(rng, *params.width))]
        reads: list[list[str]] = [[] for _ in names_here]
        if layers:
            for row in reads:
                row.append(pick(rng, layers[-1]))
                for _ in range(whole(rng, *params.reads) - 1):
                    row.append(pick(rng, pick(rng, layers) if rng.random() < params.skip_share else layers[-1]))
            read = {name for row in reads for name in row}
            for name in layers[-1]:
                if name not in read:
                    pick(rng, reads).append(name)
        nodes += [_Node(n, f"layer{depth}", _once(row)) for n, row in zip(names_here, reads, strict=True)]
        layers.append(names_here)
    return nodes


def _series_parallel(params: SeriesParallelParams, rng: np.random.Generator) -> list[_Node]:
    """Start with one edge, source to sink; then put each further operation into an edge, or beside it.

    Every two-terminal series-parallel graph without doubled edges arises so: undo its reductions one by one.
    A new operation goes right after the start of its edge, which keeps the order topological.
    """
    order, edges = [0, 1], [(0, 1)]
    for new in range(2, whole(rng, *params.operations)):
        k = whole(rng, 0, len(edges) - 1)
        start, end = edges[k]
        order.insert(order.index(start) + 1, new)
        if rng.random() < params.series_share:
            edges[k] = (start, new)
        else:
            edges.append((start, new))
        edges.append((new, end))
    place = {vertex: i for i, vertex in enumerate(order)}
    reads: list[list[int]] = [[] for _ in order]
    for start, end in edges:
        reads[place[end]].append(place[start])
    return [_Node(f"op{i}", "", tuple(f"op{j}" for j in sorted(row))) for i, row in enumerate(reads)]


def _fork_join(params: ForkJoinParams, rng: np.random.Generator) -> list[_Node]:
    """Each stage's fork reads the join before it."""
    nodes: list[_Node] = []
    for s in range(whole(rng, *params.stages)):
        scope = f"stage{s}"
        fork = f"{scope}.fork"
        nodes.append(_Node(fork, scope, (nodes[-1].name,) if nodes else ()))
        ends = []
        for b in range(whole(rng, *params.branches)):
            last = fork
            for k in range(whole(rng, *params.length)):
                nodes.append(_Node(f"{scope}.branch{b}.{k}", f"{scope}.branch{b}", (last,)))
                last = nodes[-1].name
            ends.append(last)
        nodes.append(_Node(f"{scope}.join", scope, tuple(ends)))
    return nodes


_SYNTHETIC: dict[str, tuple[type[Params], Callable[[Any, np.random.Generator], list[_Node]]]] = {
    "layered": (LayeredParams, _layered),
    "series-parallel": (SeriesParallelParams, _series_parallel),
    "fork-join": (ForkJoinParams, _fork_join),
}


def _operations(nodes: Sequence[_Node], amounts: Amounts, rng: np.random.Generator) -> list[Operation]:
    """Give a structure its amounts; who reads nothing reads the input, and what nobody reads is an output."""
    read = {name for node in nodes for name in node.reads}
    made = {"input": _activation(amounts, rng, output=False)}
    result = [Operation("input", "input", "input", outputs=[made["input"]])]
    for node in nodes:
        reads = node.reads or ("input",)
        made[node.name] = _activation(amounts, rng, output=node.name not in read)
        flops, kind, workspace, weight = 0.0, "", 0, 0
        if rng.random() < amounts.compute_share:
            flops, kind = float(round(between(rng, *amounts.flops))), pick(rng, ("matmul", "convolution"))
            if rng.random() < amounts.parameter_share:
                weight = 4 * round(between(rng, *amounts.parameter_bytes) / 4)
            if rng.random() < amounts.workspace_share:
                workspace = round(between(rng, *amounts.workspace_bytes))
        else:
            kind = "relu" if len(reads) == 1 else pick(rng, ("add", "concat"))
        if weight:
            tensor = Tensor(weight, shape=(weight // 4,))
            result.append(Operation(f"{node.name}.weight", "parameter", "parameter", node.scope, outputs=[tensor]))
        result.append(
            Operation(
                node.name,
                kind,
                scope=node.scope,
                flops=flops,
                bytes_read=sum(made[name].bytes for name in reads) + weight,
                bytes_written=made[node.name].bytes,
                workspace_bytes=workspace,
                inputs=(*reads, *((f"{node.name}.weight",) if weight else ())),
                outputs=[made[node.name]],
            )
        )
    return result


def _activation(amounts: Amounts, rng: np.random.Generator, *, output: bool) -> Tensor:
    """Return a float32 tensor of whole rows."""
    columns = round(between(rng, *amounts.tensor_bytes) / (4 * _ROWS))
    return Tensor(4 * _ROWS * columns, output=output, shape=(_ROWS, columns))


def _once(items: Sequence[str]) -> tuple[str, ...]:
    """Return the items without repetition, in the order in which they first came."""
    return tuple(dict.fromkeys(items))
