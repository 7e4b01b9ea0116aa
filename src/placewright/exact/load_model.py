"""`max_load` and `throughput` as an integer model.

Costs are divided by `unit` and rounded down, so the model's value times the unit is never above a placement's. With
a unit that divides every cost, the model's value is the simulator's, except that

- every borrowed parameter is visited once (under `stream`, a small window may make it come again), and
- memory counts persistent bytes and the least that the largest operation takes; what is left out (visits, views that
  count twice) the simulator finds, and `forbid` then excludes that content of a pool.
"""

from __future__ import annotations

from typing import Any

from placewright.exact.nodes import Nodes
from placewright.exact.place_model import PlaceModel, Sums, add_channels, add_compute, bound_by


def load_model(nodes: Nodes, unit: int, low: int, high: int) -> PlaceModel:
    """The model of the largest load, which lies from `low` to `high` units."""
    made = PlaceModel(nodes, unit)
    sums = Sums()
    add_compute(made, sums)
    if nodes.problem.objective == "throughput":
        add_channels(made, sums, made.need_moves())
    elif nodes.uniform:
        _add_cuts(made, sums)
    else:
        _add_moves(made, sums)
    made.value = made.model.new_int_var(low, high, "")
    bound_by(made, sums)
    made.model.minimize(made.value)
    return made


def _is_host(nodes: Nodes, device: int) -> bool:
    return nodes.problem.machine.devices[device].is_host


def _add_cuts(made: PlaceModel, sums: Sums) -> None:
    """Transfers where every route takes as long: a device pays once for a flow that it makes or reads across."""
    nodes = made.nodes
    for flow in nodes.flows:
        ps = int(nodes.weight[list(flow.tensors)].sum())
        for d in range(nodes.problem.n_devices):
            pins = [k for k in (flow.maker, *flow.readers) if (k, d) in made.x]
            if not pins or not ps or _is_host(nodes, d):
                continue
            pays = made.model.new_bool_var("")
            sums.add("device", d, pays, ps // made.unit)
            for r in flow.readers:
                for one, other in ((flow.maker, r), (r, flow.maker)):
                    if (one, d) in made.x:
                        made.model.add_bool_or([made.x[one, d].negated(), *made.within(other, d), pays])
    devices = range(nodes.problem.n_devices)
    if any(not nodes.has_route(a, b) for a in devices for b in devices if b not in nodes.in_pool(a)):
        made.need_moves()  # excludes what has no route


def _add_moves(made: PlaceModel, sums: Sums) -> None:
    """Transfers in general: a receiver pays for the route by which a tensor comes, an owner for its longest."""
    nodes = made.nodes
    by_source: dict[tuple[int, int], list[tuple[int, Any]]] = {}
    for (f, a, b), variable in made.need_moves().items():
        ps = sum(nodes.move_ps(t, a, b) for t in nodes.flows[f].tensors)  # a flow is one tensor here
        if not _is_host(nodes, b):
            sums.add("device", b, variable, ps // made.unit)
        if not _is_host(nodes, a):
            by_source.setdefault((f, a), []).append((ps // made.unit, variable))
    for (_, a), rows in by_source.items():
        below = 0
        for ps in sorted({ps for ps, _ in rows}):
            longer = [variable for other, variable in rows if other >= ps]
            step = longer[0] if len(longer) == 1 else made.model.new_bool_var("")
            for variable in longer[1:] and longer:
                made.model.add_implication(variable, step)
            sums.add("device", a, step, ps - below)
            below = ps
