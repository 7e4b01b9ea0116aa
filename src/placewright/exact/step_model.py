"""A relaxation of `step` as an integer model: its value is a lower bound, whatever the discipline does.

Every rule of it holds in every simulation. An operation starts after what it waits for has ended, and after a transfer
where that is in another pool; a device runs one operation at a time, under `stream` in program order; a channel
carries one transfer at a time; a tensor goes once to a device. Left out are the order of queues, later visits of a
borrowed parameter, windows, and all memory but persistent bytes and the least of the largest operation.

Times are divided by `unit` and rounded down. With every start rounded down as well, a simulation stays a solution, so
the value times the unit is still a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placewright.exact.costing import I64
from placewright.exact.nodes import Nodes
from placewright.exact.place_model import PlaceModel, Sums, add_channels, add_compute, bound_by


class StepModel(PlaceModel):
    """Adds a start to every operation."""

    starts: list[Any]

    def start_times(self, solver: Any) -> I64:
        """(operations,) when each starts in the solution, in units."""
        return np.array([solver.value(start) for start in self.starts], np.int64)


def step_model(nodes: Nodes, unit: int, low: int, high: int) -> StepModel:
    """The model of a step that ends from `low` to `high` units."""
    made = StepModel(nodes, unit)
    made.value = made.model.new_int_var(low, high, "")
    sums = Sums()
    add_compute(made, sums)
    moves = made.need_moves()
    add_channels(made, sums, moves)
    bound_by(made, sums)
    ends = _operations(made, high)
    _waits(made, ends)
    _transfers(made, moves, ends, high)
    made.model.minimize(made.value)
    return made


def _operations(made: StepModel, high: int) -> list[Any]:
    """The end of every operation, each device running one at a time."""
    nodes, model = made.nodes, made.model
    problem = nodes.problem
    node_of_op = nodes.label[problem.groups].tolist()
    made.starts, ends = [], []
    on_device: list[list[Any]] = [[] for _ in range(problem.n_devices)]
    clock: list[Any] = [0] * problem.n_devices
    for i in range(problem.n_ops):
        k = node_of_op[i]
        start, end = model.new_int_var(0, high, ""), model.new_int_var(0, high, "")
        made.starts.append(start)
        ends.append(end)
        model.add(end <= made.value)
        here = [d for d in range(problem.n_devices) if (k, d) in made.x]
        lasts = {d: int(nodes.lowered.cost_ps[i, d]) // made.unit for d in here}
        model.add(end >= start + sum(lasts[d] * made.x[k, d] for d in here))
        if problem.graph.off_queue[i]:
            continue
        for d in here:
            if problem.discipline != "stream":
                size = lasts[d]
                on_device[d].append(model.new_optional_interval_var(start, size, start + size, made.x[k, d], ""))
            else:  # in program order: not before whatever the device ran last
                model.add(start >= clock[d]).only_enforce_if(made.x[k, d])
                after = model.new_int_var(0, high, "")
                model.add(after >= clock[d])
                model.add(after >= end).only_enforce_if(made.x[k, d])
                clock[d] = after
    for intervals in on_device:
        model.add_no_overlap(intervals)
    return ends


def _waits(made: StepModel, ends: list[Any]) -> None:
    """No operation starts before what it waits for has ended."""
    graph = made.nodes.problem.graph
    for i, start in enumerate(made.starts):
        reads = graph.tensor_op[graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]]
        after = graph.after_op[graph.after_start[i] : graph.after_start[i + 1]]
        for before in np.unique(np.concatenate([reads, after])).tolist():
            made.model.add(start >= ends[before])


def _transfers(made: StepModel, moves: Mapping[tuple[int, int, int], Any], ends: list[Any], high: int) -> None:
    """A transfer for every tensor and device that it goes to: after its maker, before its readers there."""
    nodes, model, graph = made.nodes, made.model, made.nodes.problem.graph
    node_of_op = nodes.label[nodes.problem.groups]
    p, count = nodes.lowered, nodes.problem.n_devices
    start, reader = graph.consumers
    on_channel: dict[int, list[Any]] = {}
    arrivals: dict[tuple[int, int], Any] = {}
    for (f, a, b), moved in moves.items():
        for t in nodes.flows[f].tensors:
            if (t, b) not in arrivals:
                arrival = arrivals[t, b] = model.new_int_var(0, high, "")
                model.add(arrival <= made.value)
                for j in reader[start[t] : start[t + 1]].tolist():
                    if (int(node_of_op[j]), b) in made.x:
                        model.add(made.starts[j] >= arrival).only_enforce_if(made.x[int(node_of_op[j]), b])
            arrival, size = arrivals[t, b], nodes.move_ps(t, a, b) // made.unit
            model.add(arrival >= ends[int(graph.tensor_op[t])] + size).only_enforce_if(moved)
            for c in p.route_channel[p.route_start[a * count + b] : p.route_start[a * count + b + 1]].tolist():
                interval = model.new_optional_interval_var(arrival - size, size, arrival, moved, "")
                on_channel.setdefault(c, []).append(interval)
    for intervals in on_channel.values():
        model.add_no_overlap(intervals)
