"""The random problems reach every rule of the model, often enough for a comparison to mean something."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings

from placewright.graph import INPUT, PARAMETER, STORE, UPDATE
from placewright.placement import Placement
from placewright.problem import Colocate, Forbid, Pin, Problem, Separate
from tests.naive import Naive, simulate
from tests.strategies import problems, random_problem, smallest, views_of_new_values

N_PROBLEMS = 400


def features_of_graph(problem: Problem) -> set[str]:
    graph = problem.graph
    n_outputs, n_reads = np.diff(graph.out_start), np.diff(graph.in_start)
    consumers = np.diff(graph.consumers[0])
    own = graph.tensor_storage == np.arange(graph.n_tensors)
    base = graph.tensor_storage
    plain_view = ~own & ~graph.tensor_in_place
    in_place = graph.tensor_in_place & ~graph.detachable
    reads = [set(graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]) for i in range(graph.n_ops)]
    found = {
        "no operations": graph.n_ops == 0,
        "several outputs": np.any(n_outputs > 1),
        "no outputs": np.any((n_outputs == 0) & (graph.phase != STORE)),
        "several consumers": np.any(consumers > 1),
        "no consumers": np.any(consumers == 0),
        "zero bytes": np.any(graph.tensor_bytes == 0),
        "view": plain_view.any(),
        # A view of a view names the storage at the bottom; its operation reads the view in between.
        "view of a view": any(
            plain_view[t]
            and base[t] not in reads[graph.tensor_op[t]]
            and any(base[r] == base[t] for r in reads[graph.tensor_op[t]])
            for t in range(graph.n_tensors)
        ),
        "view of a parameter": np.any(plain_view & graph.persistent[base]),
        "view of a new value": np.any(graph.detachable[base] & ~own),
        "in place on a transient": in_place.any(),
        "new value": graph.detachable.any(),
        "new value of phase forward": np.any(graph.detachable & (graph.phase[graph.tensor_op] != UPDATE)),
        "new value twice": bool(len(set(base[graph.detachable])) < graph.detachable.sum()),
        "store of several": np.any((graph.phase == STORE) & (n_reads > 1)),
        "order-only": len(graph.after_op) > 0,
        "input that waits": np.any((graph.phase == INPUT) & ((n_reads > 0) | (np.diff(graph.after_start) > 0))),
        "parameter of several tensors": np.any((graph.phase == PARAMETER) & (n_outputs > 1)),
        "output": graph.tensor_output.any(),
        "transfer_s": np.any(~np.isnan(graph.tensor_transfer_s)),
        "workspace": np.any(graph.workspace_bytes > 0),
        "colocation": np.any(np.bincount(graph.colocation[graph.colocation >= 0], minlength=1) > 1),
    }
    return {name for name, is_there in found.items() if is_there}


def features_of_machine(problem: Problem) -> set[str]:
    machine = problem.machine
    given = {(route.source, route.target): route.channels for route in machine.routes}
    users = Counter(name for channels in given.values() for name in set(channels))
    found = {
        "one device": len(machine.devices) == 1,
        "five devices": len(machine.devices) == 5,
        "pool of several devices": len(set(machine.pool_of)) < len(machine.devices),
        "shared channel": any(count > 1 for count in users.values()),
        "one channel for both directions": any(
            set(given.get((b, a), ())) & set(channels) for (a, b), channels in given.items()
        ),
        "several channels": any(len(set(channels)) > 1 for channels in given.values()),
        "reserve": any(pool.reserve_bytes for pool in machine.pools),
        "two hosts": sum(device.is_host for device in machine.devices) > 1,
        **{f"granule {size}": any(p.granule_bytes == size for p in machine.pools) for size in (1, 256, 512)},
    }
    return {name for name, is_there in found.items() if is_there}


def features_of_problem(problem: Problem, placement: Placement) -> set[str]:
    seconds = problem.costs.seconds
    queued = ~problem.graph.off_queue
    mine = seconds[np.arange(problem.n_ops), placement.devices][queued]
    windows = placement.windows_bytes
    kinds = {type(constraint) for constraint in problem.constraints}
    ranked = placement.priorities is not None and problem.discipline == "priority" and problem.n_ops > 2
    found = {
        "zero-time": np.any(mine == 0),
        "equal costs": len(mine) > len(set(mine)),
        "infinite cost elsewhere": np.isinf(seconds).any(),
        "pin": Pin in kinds,
        "forbid": Forbid in kinds,
        "colocate": Colocate in kinds,
        "separate": Separate in kinds,
        "priorities with ties": ranked and len(set(placement.priorities)) < problem.n_ops,
        "priority without priorities": placement.priorities is None and problem.discipline == "priority",
        "no windows": windows is None,
        "default window": windows is not None and -1 in windows,
        "window of 0": windows is not None and 0 in windows,
        "huge window": windows is not None and max(windows) > 1 << 30,
    }
    return {name for name, is_there in found.items() if is_there} | {problem.objective, problem.discipline}


def features_of_outcome(problem: Problem, placement: Placement, out: Naive) -> set[str]:
    graph, machine = problem.graph, problem.machine
    given = {(machine.device(route.source), machine.device(route.target)) for route in machine.routes}
    ways = {(row[1], row[2]) for row in out.transfers}
    visits = Counter(row[:3:2] for row in out.transfers if row[4])
    persistent, new = graph.persistent, graph.detachable
    home = placement.devices[graph.tensor_op]
    pool = np.array(machine.pool_of)[home]
    at_home = new & (pool == pool[graph.tensor_storage])
    stored = {int(t) for t, i in zip(graph.in_tensor, graph.read_op, strict=True) if graph.phase[i] == STORE}
    stored_at = {(t, int(placement.devices[graph.tensor_op[graph.tensor_storage[t]]])) for t in stored}
    served = Counter((int(t), int(placement.devices[i])) for t, i in zip(graph.in_tensor, graph.read_op, strict=True))
    lengths = [(row[6] - row[5]) for row in out.transfers if row[5] >= 0]
    starts = Counter(row[5] for row in out.transfers if row[5] >= 0)
    own = graph.tensor_storage == np.arange(graph.n_tensors)
    views = ~own & ~new
    found = {
        "infeasible by cost": out.reason == "cost",
        "infeasible by route": out.reason == "route",
        "infeasible by memory": out.reason == "memory",
        "feasible in tight memory": out.feasible and any(p.bytes < 1 << 30 for p in machine.pools),
        "window raised": any(out.raised),
        "visit": bool(visits),
        "visits to one device": any(n > 1 for n in Counter(d for _, d in visits).values()),
        "visit dropped and revisited": any(n > 1 for n in visits.values()),
        "visit of several consumers": any(served[key] > count for key, count in visits.items()),
        "revisited in a step": problem.objective == "step" and any(n > 1 for n in visits.values()),
        "transient sent": any(not row[4] for row in out.transfers),
        "transient to several devices": any(
            n > 1 for n in Counter(row[0] for row in out.transfers if not row[4]).values()
        ),
        "route through hosts": any(way not in given for way in ways),
        "channel met twice": any(
            len(set(route)) < len(route) for route in (machine.route(*way) or () for way in ways)
        ),
        "zero-time transfer": 0 in lengths,
        "zero bytes sent": any(graph.tensor_bytes[row[0]] == 0 for row in out.transfers),
        "transfers starting together": any(n > 1 for n in starts.values()),
        "new value at home": at_home.any(),
        "new value elsewhere": np.any(new & ~at_home),
        "store of what was received": any(row[0] in stored for row in out.transfers),
        "store and another reader of what was received": any(
            (row[0], row[2]) in stored_at and served[row[0], row[2]] > 1 for row in out.transfers
        ),
        "new value sent, not to its store": any(
            new[row[0]] and (row[0], row[2]) not in stored_at for row in out.transfers
        ),
        "view sent": any(views[row[0]] for row in out.transfers),
        "view of a parameter sent": any(
            views[row[0]] and persistent[graph.tensor_storage[row[0]]] for row in out.transfers
        ),
        "transfer_s used": any(not np.isnan(graph.tensor_transfer_s[row[0]]) for row in out.transfers),
        "two copies in one pool": any(
            machine.pool_of[a] == machine.pool_of[b] and a != b
            for t in {row[0] for row in out.transfers}
            for a in (row[2] for row in out.transfers if row[0] == t)
            for b in (row[2] for row in out.transfers if row[0] == t)
        ),
        "read in its pool on another device": any(
            pool[t] == machine.pool_of[placement.devices[i]] and home[t] != placement.devices[i]
            for t, i in zip(graph.in_tensor, graph.read_op, strict=True)
        ),
        "max_load with a host": problem.objective == "max_load" and any(machine.devices[d].is_host for _, d in ways),
    }  # fmt: skip
    return {name for name, is_there in found.items() if is_there}


# At least so many of the 400 problems have the feature.
WANTED = {
    "no operations": 10, "several outputs": 150, "no outputs": 60, "several consumers": 150, "no consumers": 150,
    "zero bytes": 150, "view": 100, "view of a view": 20, "view of a parameter": 30, "in place on a transient": 40,
    "new value": 100, "new value of phase forward": 40, "new value twice": 25, "store of several": 20,
    "order-only": 150, "input that waits": 30, "parameter of several tensors": 60, "output": 120, "transfer_s": 100,
    "workspace": 120, "colocation": 40,
    "one device": 20, "five devices": 20, "pool of several devices": 50, "shared channel": 100,
    "one channel for both directions": 80, "several channels": 50, "reserve": 60, "two hosts": 20,
    "granule 1": 80, "granule 256": 80, "granule 512": 80,
    "zero-time": 100, "equal costs": 150, "infinite cost elsewhere": 50, "pin": 15, "forbid": 15, "colocate": 20,
    "separate": 10, "priorities with ties": 25, "priority without priorities": 25, "no windows": 80,
    "default window": 80, "window of 0": 60, "huge window": 45,
    "step": 150, "max_load": 50, "throughput": 50, "stream": 120, "ready": 60, "priority": 60,
    "infeasible by cost": 8, "infeasible by route": 8, "infeasible by memory": 30, "feasible in tight memory": 20,
    "window raised": 25, "visit": 100, "visits to one device": 60, "visit dropped and revisited": 20,
    "visit of several consumers": 40, "revisited in a step": 12, "transient sent": 120,
    "transient to several devices": 30, "route through hosts": 25, "channel met twice": 20, "zero-time transfer": 25,
    "zero bytes sent": 40, "transfers starting together": 25, "new value at home": 50, "new value elsewhere": 30,
    "store of what was received": 25, "store and another reader of what was received": 6,
    "new value sent, not to its store": 10, "view sent": 30, "view of a parameter sent": 10, "transfer_s used": 20,
    "two copies in one pool": 5, "read in its pool on another device": 25, "max_load with a host": 8,
}  # fmt: skip
if views_of_new_values():
    WANTED["view of a new value"] = 8


def test_random_problems_cover_the_rules() -> None:
    seen: Counter[str] = Counter()
    for seed in range(N_PROBLEMS):
        problem, placement = random_problem(random.Random(seed), seed % 13 if seed % 2 else 10 + seed % 40)
        out = simulate(problem, placement)
        seen.update(features_of_graph(problem))
        seen.update(features_of_machine(problem))
        seen.update(features_of_problem(problem, placement))
        seen.update(features_of_outcome(problem, placement, out))
    short = {name: f"{seen[name]} of {least}" for name, least in WANTED.items() if seen[name] < least}
    assert not short


def test_the_same_seed_gives_the_same_problem() -> None:
    one, two = (random_problem(random.Random(5), 30) for _ in range(2))
    assert one[1] == two[1]
    assert one[0].graph.op_names == two[0].graph.op_names
    assert one[0].machine == two[0].machine
    assert np.array_equal(one[0].costs.seconds, two[0].costs.seconds)
    assert np.array_equal(one[0].graph.in_tensor, two[0].graph.in_tensor)


@pytest.mark.parametrize("n_ops", [0, 1, 2, 12, 300])
def test_the_size_is_as_asked(n_ops: int) -> None:
    assert random_problem(random.Random(1), n_ops)[0].n_ops == n_ops


@settings(max_examples=60, deadline=None)
@given(problems())
def test_drawn_problems_are_valid_and_small(drawn: tuple[Problem, Placement]) -> None:
    problem, placement = drawn
    problem.check(placement)
    assert problem.n_ops <= 12
    assert 1 <= problem.n_devices <= 5


def test_the_smallest_failure_is_small() -> None:
    found = smallest(lambda problem, placement: any(simulate(problem, placement).raised))
    assert found is not None
    assert found[0].n_ops <= 3  # a parameter, what reads it, and one more at most
    assert smallest(lambda *_: False, max_ops=1, seeds=3) is None
