"""Problem: graph + machine + costs + constraints + objective + discipline. Frozen, checked once."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewright.checks import format_bytes
from placewright.costs import Costs
from placewright.costs.roofline import costs as roofline_costs
from placewright.documents import MAX_CONSTRAINT, checked
from placewright.errors import InfeasibleError, InputError, PlacementError, ProblemError, UnknownNameError
from placewright.graph import Ints, OpGraph
from placewright.machine import Machine
from placewright.placement import Placement

OBJECTIVES = ("step", "max_load", "throughput")
DISCIPLINES = ("stream", "ready", "priority")
ESTIMATED = Costs.given(np.zeros((0, 0)))
"""Stands for the costs that graph and machine give by themselves: measured where the graph has it, else roofline."""


@dataclass(frozen=True)
class Constraint:
    """A rule about operations that match a pattern: a name, a scope (with all below it), or a glob."""

    patterns: tuple[str, ...]
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        given: tuple[object, object] = (self.patterns, self.devices)
        if not self.patterns or any(isinstance(names, str) for names in given):
            raise InputError(f"{self!r}: patterns and devices are tuples of names, with one pattern or more")
        checked(str(self), "constraint", MAX_CONSTRAINT)  # a plan holds it as text

    @property
    def kind(self) -> str:
        """Its word on the command line and in files."""
        return type(self).__name__.lower()

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(self.patterns)}" + (f"={','.join(self.devices)}" if self.devices else "")


class Pin(Constraint):
    """The operations run on one of the devices."""


class Forbid(Constraint):
    """The operations run on none of the devices."""


class Colocate(Constraint):
    """All the operations run on one device."""


class Separate(Constraint):
    """No operation of one pattern shares a device with one of another pattern."""


_KINDS: dict[str, type[Constraint]] = {c.__name__.lower(): c for c in (Pin, Forbid, Colocate, Separate)}


def parse_constraint(text: str) -> Constraint:
    """A constraint from text: `pin:decoder.*=gpu:0,gpu:1`, `colocate:embed,head`, `separate:a.*,b.*`."""
    checked(text, "constraint", MAX_CONSTRAINT)
    kind, _, rest = text.partition(":")
    if kind not in _KINDS or not rest:
        raise InputError(
            f"constraint {text!r}: write pin:PATTERN=DEVICE, forbid:PATTERN=DEVICE, colocate:PATTERN,PATTERN "
            "or separate:PATTERN,PATTERN"
        )
    devices = ""
    if kind in ("pin", "forbid"):
        rest, equals, devices = rest.rpartition("=")
        if not equals or not rest or not devices:
            raise InputError(f"constraint {text!r}: write {kind}:PATTERN=DEVICE[,DEVICE]")
    split, where = (tuple(filter(None, names.split(","))) for names in (rest, devices))
    if not split or (devices and not where):
        raise InputError(f"constraint {text!r}: names nothing but commas")
    if kind == "separate" and len(split) < 2:
        raise InputError(f"constraint {text!r}: separate needs two patterns or more")
    return _KINDS[kind](split, where)


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """What is to be placed, where, and by what measure. Variants by `replace`."""

    graph: OpGraph
    machine: Machine
    costs: Costs = ESTIMATED
    constraints: tuple[Constraint, ...] = ()
    objective: str = "step"
    discipline: str = "stream"

    def __post_init__(self) -> None:
        if self.costs is ESTIMATED:
            object.__setattr__(self, "costs", roofline_costs(self.graph, self.machine))
        object.__setattr__(self, "constraints", tuple(self.constraints))
        for name, value, allowed in (
            ("objective", self.objective, OBJECTIVES),
            ("discipline", self.discipline, DISCIPLINES),
        ):
            if value not in allowed:
                raise UnknownNameError(name, value, allowed)
        shape = (self.graph.n_ops, len(self.machine.devices))
        if self.costs.seconds.shape != shape:
            raise ProblemError(f"costs are of shape {self.costs.seconds.shape}; graph and machine need {shape}")
        idle = self.costs.seconds[self.graph.off_queue]
        if np.any((idle != 0) & np.isfinite(idle)):
            raise ProblemError("costs of inputs, parameters and stores must be 0, or infinite where they may not live")
        self._check_solvable()

    def __repr__(self) -> str:
        question = f"{self.objective}, {self.discipline}, {len(self.constraints)} constraints"
        return f"Problem({self.graph.name!r}, {self.n_ops} operations, on {self.machine.name!r}; {question})"

    def replace(self, **changes: Any) -> Problem:
        """The same problem with some fields changed; a new graph or machine gets new costs unless given."""
        if ("graph" in changes or "machine" in changes) and "costs" not in changes:
            changes["costs"] = ESTIMATED
        return replace(self, **changes)

    @property
    def n_ops(self) -> int:
        """Number of operations."""
        return self.graph.n_ops

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.machine.devices)

    @cached_property
    def matches(self) -> tuple[tuple[Ints, ...], ...]:
        """For every constraint and each of its patterns, the operations that match."""
        return tuple(tuple(self._match(pattern) for pattern in c.patterns) for c in self.constraints)

    @cached_property
    def groups(self) -> Ints:
        """The group of every operation: operations of one group run on one device. Numbered by first operation."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        n = self.n_ops
        pairs = [self.graph.colocated_pairs]
        member = np.flatnonzero(self.graph.colocation >= 0)
        classes = [member[np.argsort(self.graph.colocation[member], kind="stable")]]
        same = np.diff(self.graph.colocation[classes[0]]) == 0
        pairs.append(np.stack([classes[0][:-1][same], classes[0][1:][same]], 1).astype(np.int32))
        for constraint, rows in zip(self.constraints, self.matches, strict=True):
            if isinstance(constraint, Colocate):
                ops = np.concatenate(rows)
                pairs.append(np.stack([ops[:-1], ops[1:]], 1))
        edges = np.concatenate(pairs)
        links = coo_array((np.ones(len(edges), bool), (edges[:, 0], edges[:, 1])), shape=(n, n))
        label = connected_components(links, directed=False)[1] if n else np.zeros(0, np.int32)
        first, inverse = np.unique(label, return_index=True, return_inverse=True)[1:]
        order = np.empty(len(first), np.int32)
        order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
        result: Ints = order[inverse].astype(np.int32)
        result.flags.writeable = False
        return result

    @cached_property
    def leaders(self) -> Ints:
        """The first operation of every group."""
        return np.unique(self.groups, return_index=True)[1].astype(np.int32)

    @cached_property
    def n_groups(self) -> int:
        """Number of independent decisions."""
        return int(self.groups.max(initial=-1)) + 1

    @cached_property
    def permitted(self) -> NDArray[np.bool_]:
        """(operations, devices): what pins and forbids leave, for each operation alone."""
        table = np.ones((self.n_ops, self.n_devices), bool)
        for constraint, rows in zip(self.constraints, self.matches, strict=True):
            if isinstance(constraint, Pin | Forbid):
                chosen = self._devices(constraint)
                for ops in rows:
                    table[ops] &= chosen if isinstance(constraint, Pin) else ~chosen
        table.flags.writeable = False
        return table

    @cached_property
    def choices(self) -> NDArray[np.bool_]:
        """(groups, devices): where all operations of a group may be and can run."""
        bad = np.zeros((self.n_groups, self.n_devices), np.int64)
        np.add.at(bad, self.groups, ~(self.permitted & np.isfinite(self.costs.seconds)))
        table: NDArray[np.bool_] = bad == 0
        table.flags.writeable = False
        return table

    @cached_property
    def separated(self) -> tuple[tuple[Ints, Ints], ...]:
        """Pairs of sets of operations that may not share a device."""
        pairs = []
        for constraint, rows in zip(self.constraints, self.matches, strict=True):
            if isinstance(constraint, Separate):
                pairs += [(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :]]
        return tuple(pairs)

    def placement(
        self,
        devices: ArrayLike | Mapping[str, str],
        priorities: ArrayLike | None = None,
        windows_bytes: ArrayLike | None = None,
    ) -> Placement:
        """A placement of this problem, checked against its constraints.

        `devices` is one index per operation, or a mapping of every operation's name to a device's name.
        """
        if isinstance(devices, Mapping):
            devices = self._by_name(devices)
        placement = Placement(devices, priorities, windows_bytes)  # type: ignore[arg-type]
        self.check(placement)
        return placement

    def check(self, placement: Placement) -> None:
        """Raise unless the placement is of the right shape and keeps every constraint."""
        devices = placement.devices
        if len(devices) != self.n_ops:
            raise PlacementError(f"a placement of {len(devices)} operations for a graph of {self.n_ops}")
        if self.n_ops and int(devices.max()) >= self.n_devices:
            raise PlacementError(f"device index {int(devices.max())}; the machine has {self.n_devices} devices")
        windows = placement.windows_bytes
        if windows is not None and len(windows) != self.n_devices:
            raise PlacementError(f"{len(windows)} windows for {self.n_devices} devices")
        if self.constraints and not self.permitted[np.arange(self.n_ops), devices].all():
            bad = int(np.flatnonzero(~self.permitted[np.arange(self.n_ops), devices])[0])
            raise PlacementError(
                f"operation {self.graph.op_names[bad]!r} may not run on "
                f"{self.machine.devices[devices[bad]].name!r}: {self._blame(bad, int(devices[bad]))}"
            )
        apart = np.flatnonzero(devices != devices[self.leaders[self.groups]])
        if len(apart):
            one, two = int(apart[0]), int(self.leaders[self.groups[apart[0]]])
            names = self.graph.op_names
            raise PlacementError(f"operations {names[two]!r} and {names[one]!r} must run on one device")
        for a, b in self.separated:
            shared = np.intersect1d(devices[a], devices[b])
            if len(shared):
                device = self.machine.devices[shared[0]].name
                one = int(a[devices[a] == shared[0]][0])
                two = int(b[devices[b] == shared[0]][0])
                names = self.graph.op_names
                raise PlacementError(f"operations {names[one]!r} and {names[two]!r} may not share device {device!r}")

    def check_all(self, placements: Sequence[Placement]) -> None:
        """Raise unless every placement keeps every constraint; quicker than one by one."""
        shaped = all(len(p.devices) == self.n_ops and p.windows_bytes is None for p in placements)
        if not shaped or self.separated or len(placements) < 2:
            for placement in placements:
                self.check(placement)
            return
        table = np.stack([p.devices for p in placements])
        good = bool((table < self.n_devices).all()) and bool((table == table[:, self.leaders[self.groups]]).all())
        if not good or (self.constraints and not self.permitted[np.arange(self.n_ops), table].all()):
            for placement in placements:
                self.check(placement)

    def lift(self, group_devices: ArrayLike) -> NDArray[np.int16]:
        """Devices of all operations from those of the groups."""
        return np.asarray(group_devices, np.int16)[self.groups]

    def check_memory(self) -> None:
        """Raise if what must live for the whole step cannot fit into the machine, wherever it is put."""
        graph = self.graph
        capacity = np.array([pool.capacity_bytes for pool in self.machine.pools], np.int64)
        where = np.array(self.machine.pool_of)
        sizes = np.zeros(self.n_groups, np.int64)
        np.add.at(sizes, self.groups[graph.tensor_op[graph.persistent]], graph.tensor_bytes[graph.persistent])
        room = np.where(self.choices, capacity[where][None, :], -1).max(axis=1, initial=-1)
        for group in np.flatnonzero(sizes > room)[:1]:
            op = graph.op_names[int(np.flatnonzero(self.groups == group)[0])]
            raise InfeasibleError(
                f"operation {op!r} and those that must be with it hold {format_bytes(int(sizes[group]))} for the whole "
                f"step; the largest pool that they may use has {format_bytes(int(room[group]))}. "
                "Use a smaller batch or model, relax the constraints, or name a machine with more memory."
            )
        self._check_largest_operation(capacity[where])
        reachable = np.unique(where[self.choices.any(axis=0)]) if self.n_groups else where
        need, have = int(sizes.sum()), int(capacity[reachable].sum())
        if need > have:
            raise InfeasibleError(
                f"parameters, buffers and optimiser state need {format_bytes(need)}; all pools together have "
                f"{format_bytes(have)}, {format_bytes(need - have)} too little. Use a smaller model, a lighter "
                "optimiser or narrower types, or name a machine with more memory."
            )

    def _check_largest_operation(self, capacity: NDArray[np.int64]) -> None:
        """Raise if an operation needs more for itself than any device that may run it can allocate."""
        graph = self.graph
        own = (graph.tensor_storage == np.arange(graph.n_tensors)) & ~graph.persistent
        if self.objective == "step":  # what an input brings is gone at once where nothing on a queue reads it
            own &= graph.tensor_output | ~graph.off_queue[graph.tensor_op] | graph.read_on_queue
        need = graph.workspace_bytes.copy()
        np.add.at(need, graph.tensor_op[own], graph.tensor_bytes[own])
        room = np.where(self.choices, capacity[None, :], -1).max(axis=1, initial=-1)[self.groups]
        for i in np.flatnonzero(need > room)[:1].tolist():
            raise InfeasibleError(
                f"operation {graph.op_names[i]!r} needs {format_bytes(int(need[i]))} for its outputs and workspace; "
                f"the largest pool that it may use has {format_bytes(int(room[i]))}. "
                "Use a smaller batch, relax the constraints, or name a machine with more memory."
            )

    def _check_solvable(self) -> None:
        stuck = np.flatnonzero(~self.choices.any(axis=1)) if self.n_ops else np.zeros(0, np.int64)
        if not len(stuck):
            return self._check_separable()
        members = np.flatnonzero(self.groups == stuck[0])
        names = [self.graph.op_names[int(i)] for i in members]
        runs = np.isfinite(self.costs.seconds[members])
        devices = self.machine.devices
        for i, row in zip(members, runs, strict=True):
            if not row.any():
                raise InfeasibleError(
                    f"operation {self.graph.op_names[int(i)]!r} (kind {self.graph.kinds[int(i)]!r}) can run on no "
                    f"device of machine {self.machine.name!r} ({', '.join(d.name for d in devices)}). "
                    "Add a device that can run it, or give its cost."
                )
        left = self.permitted[members] & runs
        limits = [
            f"{names[k]!r} only on "
            + (", ".join(d.name for d, ok in zip(devices, left[k], strict=True) if ok) or "none")
            for k in np.argsort(left.sum(axis=1), kind="stable")[:6].tolist()  # the most limited say why
        ]
        rules = [
            str(constraint)
            for constraint, rows in zip(self.constraints, self.matches, strict=True)
            if not isinstance(constraint, Separate) and np.isin(np.concatenate(rows), members).any()
        ]
        raise InfeasibleError(
            f"operations that must run on one device have none in common: {'; '.join(limits)}. "
            f"Relax a pin, a forbid or a colocation{': ' if rules else ''}{'; '.join(rules[:6])}."
        )

    def _check_separable(self) -> None:
        """Raise if operations of one group may not share a device."""
        names = self.graph.op_names
        for a, b in self.separated:
            both = np.intersect1d(self.groups[a], self.groups[b])
            if len(both):
                one = names[int(a[self.groups[a] == both[0]][0])]
                two = names[int(b[self.groups[b] == both[0]][0])]
                raise InfeasibleError(
                    f"operations {one!r} and {two!r} must run on one device, and a separate keeps them apart. "
                    "Relax the separate or a colocation."
                )

    def _match(self, pattern: str) -> Ints:
        graph = self.graph
        if pattern in graph.index:
            return np.array([graph.index[pattern]], np.int32)
        found = [i for i, scope in enumerate(graph.scopes) if f"{scope}.".startswith(f"{pattern}.")]
        if not found and any(mark in pattern for mark in "*?["):
            glob = re.compile(fnmatch.translate(pattern))
            rows = zip(graph.op_names, graph.scopes, strict=True)
            found = [i for i, (name, scope) in enumerate(rows) if glob.match(name) or (scope and glob.match(scope))]
        if not found:
            known = [*dict.fromkeys(scope for scope in graph.scopes if scope), *graph.op_names]
            raise UnknownNameError("operation, scope or glob in a constraint", pattern, known)
        return np.array(found, np.int32)

    def _devices(self, constraint: Constraint) -> NDArray[np.bool_]:
        names = [device.name for device in self.machine.devices]
        chosen = np.zeros(len(names), bool)
        for pattern in constraint.devices:
            hits = [name == pattern or fnmatch.fnmatchcase(name, pattern) for name in names]
            if not any(hits):
                raise UnknownNameError("device", pattern, names, f"In constraint {constraint}.")
            chosen |= np.array(hits)
        return chosen

    def _by_name(self, devices: Mapping[str, str]) -> NDArray[np.int64]:
        for name in devices:
            self.graph.op(name)
        missing = [name for name in self.graph.op_names if name not in devices]
        if missing:
            raise PlacementError(f"the placement names no device for {len(missing)} operations, first {missing[0]!r}")
        return np.array([self.machine.device(devices[name]) for name in self.graph.op_names])

    def _blame(self, op: int, device: int) -> str:
        """The first constraint that keeps the operation off the device."""
        for constraint, rows in zip(self.constraints, self.matches, strict=True):
            if isinstance(constraint, Pin | Forbid) and any(op in ops for ops in rows):
                chosen = self._devices(constraint)
                if chosen[device] != isinstance(constraint, Pin):
                    return f"constraint {constraint}"
        return "a constraint forbids it"
