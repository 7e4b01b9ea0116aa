"""Every placer passes the contract; and the truths that each can be held to."""

import dataclasses
import importlib
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from placewright.errors import InfeasibleError, InputError, ProblemError, SearchError, UnknownNameError
from placewright.evaluate import SimulatorEvaluator
from placewright.exact.brute_force import BruteForce, BruteForceParams
from placewright.heuristics.trivial import Random, RandomParams, RoundRobin, Single
from placewright.methods import NAMED, make_placer, method_names, search
from placewright.operations import Operation, build_graph
from placewright.placement import Placement
from placewright.problem import Pin, Problem, Separate
from placewright.search import Placer, require_feasible, run_search
from placewright.sim import simulate
from placewright.stop import Evaluations, Gap, NoImprovement, Seconds
from placewright.testing import PlacerContract, small_machine, small_problem


class TestSingle(PlacerContract):
    def placer(self, problem):
        return Single(problem.machine.devices[0].name)


class TestRoundRobin(PlacerContract):
    def placer(self, problem):
        return RoundRobin()


class TestRandom(PlacerContract):
    def placer(self, problem):
        return Random(RandomParams(batch=16))


class TestBruteForce(PlacerContract):
    def placer(self, problem):
        return BruteForce()


def contracted():
    """Every class under contract in any test module."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"tests.{path.stem}")
    waiting = [PlacerContract]
    while waiting:
        waiting += (found := waiting.pop().__subclasses__())
        yield from found


def test_every_named_method_is_under_contract():
    """A new method cannot be added without its contract."""
    tested = {cls().placer(small_problem()).name for cls in contracted()}
    tested = {"single" if name.startswith("single:") else name for name in tested}
    assert {*NAMED, "single"} - tested == set()


@pytest.mark.parametrize("discipline", ["ready", "stream"])
def test_brute_force_is_the_best_of_all(discipline):
    """Brute force finds what a plain loop over all placements finds, and proves it where nothing else decides."""
    problem = small_problem(discipline)
    every = (problem.lift(np.array(pick)) for pick in itertools.product(range(3), repeat=problem.n_groups))
    best = min(simulate(problem, problem.placement(devices)).value_s for devices in itertools.islice(every, 3**7))
    result = search(problem, "brute-force")
    assert problem.n_groups == 10
    assert result.evaluations == 3**10
    assert result.value_s <= best
    assert (result.gap == 0.0) == (discipline == "ready")
    assert result.ended == "finished"


def test_brute_force_refuses_what_is_too_large():
    """More placements than allowed are refused with their number."""
    with pytest.raises(ProblemError, match=r"59,049 placements \(10 groups"):
        run_search(small_problem(), BruteForce(BruteForceParams(most=1000)))
    many = Problem(build_graph("many", [Operation(f"op{i}") for i in range(5000)]), small_machine())
    with pytest.raises(ProblemError, match=r"about 10\^2386 placements"):
        run_search(many, BruteForce())


def test_brute_force_keeps_operations_apart():
    """Separated operations never share a device, and fewer placements are asked."""
    problem = small_problem("ready", Separate(("a", "b")))
    result = search(problem, "brute-force")
    a, b = problem.matches[0]
    assert not set(result.placement.devices[a].tolist()) & set(result.placement.devices[b].tolist())
    assert 0 < result.evaluations < 3**10


@pytest.mark.parametrize("most", [1, 3, 1000, 4096, 5000, 59_048, 59_049])
def test_brute_force_proves_nothing_when_cut_short(most):
    """A search that the budget cut before its end claims no optimum, even within its last batch."""
    result = search(small_problem("ready"), "brute-force", Evaluations(most), bound=False)
    assert (result.bound_s is None) == (most < 3**10)
    small = search(small_problem("ready", devices=2), "brute-force", Evaluations(min(most, 1023)), bound=False)
    assert small.bound_s is None
    assert search(small_problem("ready"), "brute-force", Evaluations(most)).bound_s is not None


def test_brute_force_says_that_constraints_exclude_everything():
    """Three operations that must be apart on two devices: no placement, and the message says so."""
    apart = Separate(("a.mm", "b.mm", "loss"))
    result = search(small_problem("ready", apart, devices=2), "brute-force")
    with pytest.raises(InfeasibleError, match="no placement keeps all constraints"):
        require_feasible(result)


def test_an_operation_larger_than_every_pool_is_refused_by_name():
    """Workspace beyond the largest pool is refused before the search."""
    graph = build_graph("g", [Operation("small"), Operation("big", workspace_bytes=1 << 40)])
    with pytest.raises(InfeasibleError, match=r"operation 'big' needs 1\.00 TiB"):
        search(Problem(graph, small_machine()), "random", Evaluations(5))


def test_no_way_to_run_names_the_operation():
    """A placement without a route is explained with its operation and what would help."""
    problem = small_problem("ready", Pin(("a.mm",), ("gpu:0",)), Pin(("x",), ("cpu:0",)))
    cut = dataclasses.replace(problem.machine, routes=())
    hopeless = problem.replace(machine=cut, costs=problem.costs)
    result = search(hopeless, "random", Evaluations(20), bound=False)
    with pytest.raises(InfeasibleError, match=r"output of '.*no route leads; give the machine that route"):
        require_feasible(result)
    with pytest.raises(InfeasibleError, match=r"operation 'x' .* no route leads there"):
        search(hopeless, "random", Evaluations(20))


def test_random_keeps_what_it_found_when_draws_fail():
    """Draws that break a constraint end the search at worst; what was found before is the result."""
    operations = [Operation(f"op{i}") for i in range(6)]
    problem = Problem(
        build_graph("apart", operations), small_machine(6), constraints=(Separate(tuple(o.name for o in operations)),)
    )
    ends = []
    for seed in range(12):  # one draw in 65 keeps them apart
        try:
            result = search(problem, Random(RandomParams(tries=60)), Evaluations(500), seed=seed)
        except InfeasibleError:  # not one draw in the first 60
            continue
        assert sorted(result.placement.devices.tolist()) == list(range(6))
        ends.append(result.ended)
    assert ends.count("finished") >= 4
    assert search(problem, "random", Evaluations(100)).evaluations == 100


def test_random_gives_up_on_hopeless_constraints():
    """Operations that must be apart but have one device in common end random search with advice."""
    problem = small_problem("ready", Separate(("a.mm", "b.mm", "loss")), devices=2)
    with pytest.raises(InfeasibleError, match="keeps operations apart"):
        search(problem, "random", Evaluations(10))


def test_cached_placements_count():
    """Every placement asked counts, found in the cache or not."""
    problem = small_problem()
    evaluator = SimulatorEvaluator(problem)
    placement = problem.placement(np.zeros(problem.n_ops, int))
    one = evaluator.evaluate([placement, placement])
    two = evaluator.evaluate([placement])
    assert (evaluator.evaluations, evaluator.simulated) == (3, 1)
    assert one[0].outcome is one[1].outcome is two[0].outcome


def test_cache_forgets_the_oldest():
    """The cache stays within its size."""
    problem = small_problem()
    evaluator = SimulatorEvaluator(problem)
    evaluator.remember = 2
    some = [problem.placement(problem.lift(np.full(problem.n_groups, d))) for d in range(3)]
    evaluator.evaluate(some)
    evaluator.evaluate([some[0]])
    assert evaluator.simulated == 4


def test_stop_criteria_are_stateless():
    """One criterion object serves two searches alike."""
    stop = Evaluations(30) | Seconds(60)
    counts = [run_search(small_problem(), Random(RandomParams(batch=7)), stop, seed=1).evaluations for _ in range(2)]
    assert counts == [30, 30]


def test_no_improvement_and_gap_stop():
    """NoImprovement stops after its patience; Gap stops once the bound is near enough."""
    result = run_search(small_problem(), Random(RandomParams(batch=10)), NoImprovement(50))
    assert result.evaluations - result.improvements[-1][0] >= 50
    assert run_search(small_problem("ready"), BruteForce(), Gap(0.0)).ended == "stopped"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Evaluations(0),
        lambda: Evaluations(1.5),
        lambda: Evaluations(math.nan),
        lambda: Evaluations(math.inf),
        lambda: Seconds(-1),
        lambda: Gap(math.nan),
        lambda: NoImprovement(0),
        lambda: RandomParams(batch=0),
        lambda: RandomParams(tries=-1),
        lambda: BruteForceParams(most=0),
    ],
)
def test_parameters_out_of_range_are_refused(make):
    """Every parameter names itself and its range."""
    with pytest.raises(InputError, match="allowed"):
        make()


def test_unknown_method_lists_the_known():
    """A method that does not exist is refused with those that do."""
    with pytest.raises(UnknownNameError, match="brute-force") as caught:
        make_placer("brute", small_problem())
    assert "Did you mean" in str(caught.value)
    assert method_names(small_problem())[0] == "single:cpu:0"


def test_memory_that_cannot_fit_is_refused_before_the_search():
    """Parameters larger than all pools are refused with the bytes and what would help."""
    problem = small_problem()
    tight = problem.replace(machine=small_machine(3, 2000))
    with pytest.raises(InfeasibleError, match=r"hold 3\.91 KiB .* has 1\.95 KiB"):
        search(tight, "random", Evaluations(5))


def test_over_memory_is_ranked_last_and_told():
    """An infeasible best is returned, and require_feasible says in which pool and by how much."""
    tight = small_problem()
    problem = Problem(tight.graph, small_machine(3, 12_000), tight.costs)
    pinned = problem.replace(constraints=(Pin(("*",), ("gpu:0",)),))
    result = search(pinned, "single:gpu:0", bound=False)
    assert result.outcome.reason == "memory"
    with pytest.raises(InfeasibleError, match="gpu:0 needs"):
        require_feasible(result)
    free = search(problem, "random", Evaluations(500))
    assert free.feasible


def test_a_placer_is_told_what_is_left():
    """Evaluations before every batch, seconds before it begins as well; infinite where there is no such limit."""
    told = []

    class Listening(Random):
        def start(self, problem, rng):
            told.append((self.left, self.seconds_left))
            super().start(problem, rng)

        def ask(self):
            told.append((self.left, self.seconds_left))
            return super().ask()

    run_search(small_problem(), Listening(RandomParams(batch=20)), Evaluations(50))
    assert told == [(math.inf, math.inf), (50, math.inf), (30, math.inf), (10, math.inf)]
    told.clear()
    run_search(small_problem(), Listening(), Evaluations(100) | Seconds(60) | Seconds(50))
    assert [left for left, _ in told] == [math.inf, 100, 36]
    seconds = [left for _, left in told]
    assert 50 == seconds[0] > seconds[1] > seconds[2] > 0


class Broken(Placer):
    name = "broken"

    def start(self, problem, rng):
        self.problem = problem

    def ask(self):
        return [Placement(np.zeros(self.problem.n_ops + 1, int))]

    def tell(self, evaluations):
        pass


def test_a_placer_that_breaks_its_contract_is_told():
    """A placement of the wrong size stops the search with an error of ours."""
    with pytest.raises((SearchError, InputError)):
        run_search(small_problem(), Broken(), Evaluations(3))


class Interrupted(Random):
    def tell(self, evaluations):
        raise KeyboardInterrupt


def test_interrupt_gives_the_best_so_far():
    """Ctrl-C ends the search with what was found."""
    result = run_search(small_problem(), Interrupted())
    assert result.ended == "interrupted"
    assert result.feasible
    assert result.evaluations == 64


def test_summary_names_value_memory_and_cost():
    """The summary of a result is for people."""
    text = search(small_problem("ready"), "brute-force").summary()
    assert "step" in text
    assert "memory gpu:1" in text
    assert "the optimum is at most 0.0% less" in text


def test_single_device_prefers_the_allowed():
    """A group that may not be on the device goes where it is fastest."""
    problem = small_problem("stream", Pin(("loss",), ("cpu:0",)))
    result = search(problem, "single:gpu:1")
    names = problem.graph.op_names
    assert {n for n, d in zip(names, result.placement.devices, strict=True) if d != 2} == {"loss"}


def test_replace_keeps_or_renews_costs():
    """A new machine gets new costs; a new objective keeps them."""
    problem = small_problem()
    assert problem.replace(objective="max_load").costs is problem.costs
    assert isinstance(problem.replace(machine=small_machine(2)), Problem)
    assert problem.replace(machine=small_machine(2)).costs.seconds.shape[1] == 2
