"""Which multipliers to prove a bound with: the dual of a small linear programme.

The programme places shares of clusters: groups that are alike in what they add to the rows, in proportion. It is an
estimate of the whole problem's relaxation, and only its dual is used.

    G groups, N clusters, K classes, R rows, M links between clusters
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewright.bounds.relaxed import Pairs, Relaxed, Row, summed
from placewright.graph import PARAMETER, Ints

MOST_SHARES = 800
"""Clusters times classes."""
MOST_FLOWS = 6000
"""Variables for what differs between the ends of links; the lightest links are left out."""
FEW_READS = 8
"""A row that counts no more reads than this is about single groups, which are clusters by themselves."""
SHORTAGE = 1e4
"""Price of memory that is missing, in units of the objective for the whole of a set of pools."""
STEPS = (4.0, 2.0, 1.0, 0.5, 0.25)
"""How finely proportions are told apart: steps per doubling. Coarser ones are tried until clusters are few."""


@dataclass(frozen=True, eq=False)
class Shares:
    """The programme's solution: multipliers of the rows, and the share of every group on every class."""

    multipliers: NDArray[np.float64]
    shares: NDArray[np.float64]
    value_ps: float
    lacks: NDArray[np.float64]
    """Bytes that each memory row lacks, in their order."""

    @property
    def short(self) -> bool:
        """Whether memory was missing."""
        return bool((self.lacks > 1e-3).any())


def solve(relaxed: Relaxed, rows: Sequence[Row], scale_ps: float) -> Shares | None:
    """Multipliers for the rows; None where the solver gave up."""
    from scipy.optimize import linprog

    cluster = clusters(relaxed, rows, scale_ps)
    programme = _Programme(relaxed, rows, cluster, scale_ps)
    done = linprog(**programme.arguments(), method="highs")
    if done.status != 0:
        return None
    multipliers = np.maximum(-done.ineqlin.marginals[: len(rows)], 0.0)
    memory = np.array([not row.is_load for row in rows], bool)
    multipliers[memory] *= scale_ps / np.array([max(1, row.limit) for row in rows])[memory]
    shares = np.zeros(relaxed.allowed.shape)
    of, cell = programme.variable >= 0, programme.variable
    table = np.zeros(cell.shape)
    table[of] = done.x[cell[of]]
    shares[:] = table[cluster]
    lacks = done.x[programme.shortage] * np.array([max(1, row.limit) for row in rows])[memory]
    lacks[done.x[programme.shortage] < 1e-7] = 0.0
    return Shares(multipliers, shares, float(done.x[0]) * scale_ps, lacks)


def clusters(relaxed: Relaxed, rows: Sequence[Row], scale_ps: float) -> Ints:
    """The cluster of every group: those that add to all rows in like proportion; a parameter's reader counts too."""
    groups = relaxed.problem.n_groups
    columns = [relaxed.allowed.astype(np.float64) * scale_ps]
    for row in rows:
        unit = scale_ps / max(1, row.limit) if not row.is_load else 1.0
        columns += [column[:, None] * unit for column in row.columns.values()]
    lent, sent = _reads(relaxed, scale_ps)
    columns += [lent[:, None], sent[:, None]]
    features = np.concatenate(columns, axis=1)
    partner, alone = _partners(relaxed), _alone(relaxed, rows)
    most = max(2, MOST_SHARES // relaxed.n_classes)
    label = np.zeros(groups, np.int32)
    for steps in STEPS:
        plain = _numbered(np.column_stack([_rounded(features, relaxed.n_classes, steps), alone]))
        label = _numbered(np.stack([plain, np.where(partner >= 0, plain[partner], -1)], 1))
        if int(label.max(initial=0)) < most:
            break
        if int(plain.max(initial=0)) < most:
            label = plain
            break
    return label


def _alone(relaxed: Relaxed, rows: Sequence[Row]) -> Ints:
    """A number of its own for every group that a row singles out by a few reads; -1 for the others."""
    number = np.full(relaxed.problem.n_groups, -1, np.int32)
    for row in rows:
        for pairs in row.pairs:
            if len(pairs.reads) <= FEW_READS:
                ends = np.unique(np.concatenate([relaxed.ends[0][pairs.reads], relaxed.ends[1][pairs.reads]]))
                number[ends] = ends
    return number


def _rounded(features: NDArray[np.float64], allowed: int, steps: float) -> NDArray[np.float64]:
    """Logarithms of proportions, in steps."""
    body = features[:, allowed:]
    most = body.max(axis=1, initial=0.0)
    share = body / np.where(most > 0, most, 1.0)[:, None]
    logs = np.where(share > 2.0**-12, np.rint(np.log2(np.maximum(share, 2.0**-12)) * steps), -999.0)
    return np.concatenate([features[:, :allowed] > 0, logs], axis=1)


def _numbered(keys: NDArray[np.generic]) -> Ints:
    """Equal rows of whole numbers get equal numbers; so do unlike ones that share a hash, which does no harm."""
    factors = np.cumprod(np.full(keys.shape[1], 0x9E3779B97F4A7C15, np.uint64), dtype=np.uint64)
    hashes = (keys.astype(np.int64).astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    number: Ints = np.unique(hashes, return_inverse=True)[1].astype(np.int32)
    return number


def _reads(relaxed: Relaxed, scale_ps: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By group: time of the transfers of persistent tensors that it reads, and of others that it reads or makes."""
    graph, main = relaxed.problem.graph, relaxed.main
    tensors = graph.in_tensor[main]
    ways = relaxed.classes.apart & relaxed.classes.reached
    lasts = np.zeros(len(main))
    for a, b in np.argwhere(ways).tolist():
        lasts = np.maximum(lasts, relaxed.lasts(tensors, a, b))
    kept = graph.persistent[tensors]
    maker, reader = relaxed.ends[0][main], relaxed.ends[1][main]
    groups = relaxed.problem.n_groups
    lent = summed(reader[kept], lasts[kept], groups)
    sent = summed(reader[~kept], lasts[~kept], groups) + summed(maker[~kept], lasts[~kept], groups)
    return lent, sent


def _partners(relaxed: Relaxed) -> Ints:
    """For groups of parameters alone: the group that reads the largest of them; -1 for others."""
    graph, groups = relaxed.problem.graph, relaxed.problem.groups
    partner = np.full(relaxed.problem.n_groups, -1, np.int32)
    main = relaxed.main
    order = np.argsort(graph.tensor_bytes[graph.in_tensor[main]], kind="stable")
    partner[relaxed.ends[0][main[order]]] = relaxed.ends[1][main[order]]  # the last, the largest, stays
    works = np.zeros(relaxed.problem.n_groups, bool)
    works[groups[(graph.phase != PARAMETER) & ~graph.off_queue]] = True
    partner[works] = -1
    return partner


class _Programme:
    """Least T, shares x of clusters on classes and flows f, so that all rows hold.

    A flow f[link, a, b], a other than b, is the share whose lower end is on a and higher end on b. What stays on a
    is x[low, a] less what flows out of it, and x[high, a] less what flows into it.
    """

    def __init__(self, relaxed: Relaxed, rows: Sequence[Row], cluster: Ints, scale_ps: float) -> None:
        self.rows, self.scale_ps = rows, scale_ps
        self.classes = relaxed.n_classes
        count = int(cluster.max(initial=-1)) + 1
        allowed = np.zeros((count, self.classes), bool)
        np.logical_or.at(allowed, cluster, relaxed.allowed)
        self.variable = np.full((count, self.classes), -1)
        memory = [r for r, row in enumerate(rows) if not row.is_load]
        self.shortage = np.arange(1, 1 + len(memory))
        first = 1 + len(memory)
        self.variable[allowed] = np.arange(first, first + int(allowed.sum()))
        self.width = first + int(allowed.sum())
        self.entries: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]] = []
        self.upper: list[float] = []
        for r, row in enumerate(rows):
            unit = self._unit(row)
            self.upper.append(-row.limit * unit if row.is_load else row.limit * unit)
            self._add([r], [0 if row.is_load else int(self.shortage[memory.index(r)])], [-1.0])
            for k, column in row.columns.items():
                self._shares(r, k, summed(cluster, column, count) * unit)
        self.height = len(rows)
        self.equal = [
            (np.repeat(np.arange(count), allowed.sum(axis=1)), self.variable[allowed], np.ones(allowed.sum()))
        ]
        self.equals = [1.0] * count
        self._links(relaxed, cluster, allowed)

    def _unit(self, row: Row) -> float:
        return 1.0 / self.scale_ps if row.is_load else 1.0 / max(1, row.limit)

    def _add(self, rows: object, columns: object, values: object) -> None:
        self.entries.append((np.asarray(rows, np.int64), np.asarray(columns, np.int64), np.asarray(values, np.float64)))

    def _shares(self, r: int, k: int, values: NDArray[np.float64], sign: float = 1.0) -> None:
        """Add values of clusters on a class to a row."""
        some = np.flatnonzero((values > 0) & (self.variable[:, k] >= 0))
        self._add(np.full(len(some), r), self.variable[some, k], sign * values[some])

    def _links(self, relaxed: Relaxed, cluster: Ints, allowed: NDArray[np.bool_]) -> None:
        """Flows of the heaviest links between clusters, and what all links within clusters add."""
        classes, count = self.classes, len(allowed)
        ends = cluster[relaxed.ends[0]], cluster[relaxed.ends[1]]
        low, high = np.minimum(*ends).astype(np.int64), np.maximum(*ends).astype(np.int64)
        found, link_of = np.unique(low * count + high, return_inverse=True)
        lower, higher = found // count, found % count
        parts: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        tables = []
        for row in self.rows:
            table = np.zeros((len(found), classes, classes))
            for pairs in row.pairs:
                key = (id(pairs.reads), id(pairs.bytes))
                if key not in parts:
                    parts[key] = relaxed.parts(pairs, ends, link_of, len(found))
                table += parts[key][0] * pairs.factor + parts[key][1] * pairs.factor.T
            tables.append(table * self._unit(row))
        self._again(relaxed, ends, link_of, len(found))
        inner = np.flatnonzero(lower == higher)
        for r, table in enumerate(tables):
            for k in range(classes):
                self._shares(r, k, summed(lower[inner], table[inner, k, k], count))
        weight = sum((table.max(axis=(1, 2), initial=0) for table in (*tables, *self.kept)), np.zeros(len(found)))
        weight[inner] = 0
        most = max(1, MOST_FLOWS // max(1, classes * (classes - 1)))
        order = np.argsort(-weight, kind="stable")[:most]
        for m in order[weight[order] > 0].tolist():
            self._link(m, int(lower[m]), int(higher[m]), tables)

    def _again(self, relaxed: Relaxed, ends: tuple[Ints, Ints], link_of: Ints, links: int) -> None:
        """Of every memory row that has them: bytes held on links; and the time to transfer those again, by load row."""
        self.kept: list[NDArray[np.float64]] = []
        self.made_again: list[tuple[int, list[tuple[int, NDArray[np.float64]]]]] = []
        for r, row in enumerate(self.rows):
            if row.held is None:
                continue
            here = (row.held.factor > 0).astype(np.float64)
            lasts = relaxed.parts(Pairs(row.held.reads, here), ends, link_of, links)
            loads = [
                (q, (lasts[0] * (load.again * here) + lasts[1] * (load.again * here).T) * self._unit(load))
                for q, load in enumerate(self.rows)
                if load.again is not None
            ]
            self.kept.append(relaxed.counted(row.held, ends, link_of, links) * self._unit(row))
            self.made_again.append((r, loads))

    def _link(self, m: int, low: int, high: int, tables: list[NDArray[np.float64]]) -> None:
        """One link: its flows, their conservation, and what they and what stays add to the rows."""
        pairs = [(a, b) for a in range(self.classes) for b in range(self.classes)
                 if a != b and self.variable[low, a] >= 0 and self.variable[high, b] >= 0]  # fmt: skip
        flow = {pair: self.width + j for j, pair in enumerate(pairs)}
        self.width += len(pairs)
        for k in range(self.classes):
            x, y = int(self.variable[low, k]), int(self.variable[high, k])
            out = [flow[pair] for pair in pairs if pair[0] == k]
            into = [flow[pair] for pair in pairs if pair[1] == k]
            if x < 0 and y < 0:
                continue
            # x - out = y - into, where what is not allowed is 0
            columns = [*([x] if x >= 0 else []), *([y] if y >= 0 else []), *out, *into]
            values = [*([1.0] if x >= 0 else []), *([-1.0] if y >= 0 else []), *[-1.0] * len(out), *[1.0] * len(into)]
            self.equal.append((np.full(len(columns), len(self.equals)), np.array(columns), np.array(values)))
            self.equals.append(0.0)
            if out and x >= 0:
                self._add(np.full(len(out) + 1, self.height), [*out, x], [*[1.0] * len(out), -1.0])
                self.upper.append(0.0)
                self.height += 1
        for r, table in enumerate(tables):
            for (a, b), f in flow.items():
                if table[m, a, b] > 0:
                    self._add([r], [f], [table[m, a, b]])
            for k in range(self.classes):
                stays = table[m, k, k]
                if stays > 0 and self.variable[low, k] >= 0:
                    out = [flow[pair] for pair in pairs if pair[0] == k]
                    self._add([r] * (1 + len(out)), [int(self.variable[low, k]), *out], [stays, *[-stays] * len(out)])
        for kept, (r, loads) in zip(self.kept, self.made_again, strict=True):
            for (a, b), f in flow.items():
                if kept[m, a, b] > 0:
                    self._hold(f, r, float(kept[m, a, b]), [(q, float(table[m, a, b])) for q, table in loads])

    def _hold(self, flow: int, row: int, size: float, loads: list[tuple[int, float]]) -> None:
        """A share of a flow is held, and counts in a memory row; the rest counts again in load rows."""
        held, self.width = self.width, self.width + 1
        self._add([self.height] * 2, [held, flow], [1.0, -1.0])
        self.upper.append(0.0)
        self.height += 1
        self._add([row], [held], [size])
        for q, lasts in loads:
            if lasts > 0:
                self._add([q, q], [flow, held], [lasts, -lasts])

    def arguments(self) -> dict[str, object]:
        """For scipy's linprog."""
        from scipy.sparse import coo_array

        rows, columns, values = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        same, where, signs = (np.concatenate(part) for part in zip(*self.equal, strict=True))
        cost = np.zeros(self.width)
        cost[0] = 1.0
        cost[self.shortage] = SHORTAGE
        return {
            "c": cost,
            "A_ub": coo_array((values, (rows, columns)), shape=(self.height, self.width)).tocsr(),
            "b_ub": np.array(self.upper),
            "A_eq": coo_array((signs, (same, where)), shape=(len(self.equals), self.width)).tocsr(),
            "b_eq": np.array(self.equals),
            "bounds": (0, None),
        }
