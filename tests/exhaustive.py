"""Every placement of a tiny problem, with several windows and priorities each, and small problems where it matters."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np

from placewright.costs import Costs
from placewright.errors import PlacementError
from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph
from placewright.placement import Placement
from placewright.problem import DISCIPLINES, OBJECTIVES, Pin, Problem, Separate
from placewright.sim import Simulator

WINDOWS = (0, 512, 1536, 1 << 40)


def count(problem):
    """How many ways there are to give every group a device."""
    return math.prod(int(row.sum()) for row in problem.choices)


def optimum_ps(problem, seed=0):
    """The least value of any placement that fits, with default and other windows and priorities; None if none fits."""
    numbers = np.random.default_rng(seed)
    placements = []
    for pick in itertools.product(*(np.flatnonzero(row) for row in problem.choices)):
        plain = Placement(problem.lift(np.array(pick, np.int64)))
        try:
            problem.check(plain)
        except PlacementError:  # what must be apart is not
            continue
        placements.append(plain)
        if problem.discipline == "stream":
            sizes = [np.full(problem.n_devices, window) for window in WINDOWS]
            sizes.append(numbers.choice([-1, *WINDOWS], problem.n_devices))
            placements += [Placement(plain.devices, None, size) for size in sizes]
        elif problem.discipline == "priority":
            ranks = (numbers.permutation(problem.n_ops).astype(float) for _ in range(2))
            placements += [Placement(plain.devices, rank) for rank in ranks]
    outcomes = Simulator(problem, threads=1).simulate(placements)
    return min((outcome.value_ps for outcome in outcomes if outcome.feasible), default=None)


def busy_problem(rng: random.Random) -> Problem:
    """Few operations, transfers that cost about as much, devices alike or not, now and then little memory."""
    n_devices = rng.choice([2, 2, 3, 3, 4])
    n_ops = rng.randint(3, {2: 9, 3: 6, 4: 5}[n_devices])
    machine = _machine(rng, n_devices)
    ops: list[Operation] = []
    for i in range(n_ops):
        before = [op.name for op in ops]
        if rng.random() < 0.2:
            ops.append(Operation(f"o{i}", phase="parameter", outputs=[Tensor(rng.choice([500, 1000, 2000]))]))
            continue
        reads = rng.sample(before, min(len(before), rng.choice([0, 1, 1, 2, 2, 3])))
        after = [name for name in rng.sample(before, min(len(before), 1)) if rng.random() < 0.1 and name not in reads]
        ops.append(
            Operation(
                f"o{i}",
                inputs=reads,
                after=after,
                outputs=[Tensor(rng.choice([0, 500, 1000, 3000]))],
                workspace_bytes=rng.choice([0, 0, 1000]),
                colocation=rng.choice([None] * 8 + ["together"]),
            )
        )
    kind = rng.choice(["alike", "host", "any"])
    seconds = np.zeros((n_ops, n_devices))
    for i, op in enumerate(ops):
        if op.phase != "parameter":
            base = rng.choice([1, 2, 3, 1.5]) * 1e-6
            factors = {"alike": (1,), "host": (1,), "any": (1, 2, 0.5)}[kind]
            seconds[i] = [base * (3 if kind == "host" and d == 0 else rng.choice(factors)) for d in range(n_devices)]
    rules = []
    if rng.random() < 0.15:
        rules.append(Pin((f"o{rng.randrange(n_ops)}",), (f"d{rng.randrange(n_devices)}",)))
    if rng.random() < 0.1:
        rules.append(Separate(tuple(f"o{i}" for i in rng.sample(range(n_ops), 2))))
    graph = build_graph("busy", ops)
    objective = rng.choice([*OBJECTIVES, "step"])
    return Problem(graph, machine, Costs.given(seconds), tuple(rules), objective, rng.choice(DISCIPLINES))


def _machine(rng: random.Random, n_devices: int) -> Machine:
    """Pairs with channels of their own, a bus, or ways through a host."""
    names = [f"d{i}" for i in range(n_devices)]
    tight, style = rng.random() < 0.4, rng.choice(["pairs", "bus", "host"])
    pools: list[Pool] = []
    pool_of: list[str] = []
    for name in names:
        if not pools or rng.random() > 0.15:
            pools.append(Pool(name, rng.choice([3000, 5000, 8000]) if tight else 1 << 40, 1))
        pool_of.append(pools[-1].name)
    channels = [Channel("bus", rng.choice([1e9, 3e8]), rng.choice([0, 1e-6]))] if style == "bus" else []
    routes = []
    for a, b in itertools.permutations(names, 2):
        if style == "bus":
            routes.append(Route(a, b, ("bus",)))
        elif style == "pairs" or "d0" in (a, b):
            channels.append(Channel(f"{a}{b}", 1e9, rng.choice([0, 5e-7, 5e-7, 1e-6]) if style == "pairs" else 5e-7))
            routes.append(Route(a, b, (f"{a}{b}",)))
    devices = tuple(Device(name, "m", pool, "d0") for name, pool in zip(names, pool_of, strict=True))
    return Machine("busy", devices, tuple(pools), tuple(channels), tuple(routes))
