"""The suite of benchmarks: what a cell is, what the page says of cells, and what the small problems are."""

import json
import math
import sys
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import small_problems  # noqa: E402
import suite  # noqa: E402
import suite_page  # noqa: E402
import suite_problems  # noqa: E402
from placewright.errors import InputError  # noqa: E402
from placewright.evaluate import SimulatorEvaluator  # noqa: E402
from placewright.fingerprints import workload_fingerprint  # noqa: E402
from placewright.stop import Evaluations  # noqa: E402
from placewright.testing import small_problem  # noqa: E402

from placewright.methods import search  # noqa: E402  isort: skip


def cell_of(problem, method, value_s, *, feasible=True, devices=1, **more):
    """A cell as a run leaves it."""
    record = {"suite": "step", "problem": problem, "method": method, "operations": 10, "parallelism": 1.5}
    record |= {"value_s": value_s, "feasible": feasible, "reason": "" if feasible else "memory", "devices": devices}
    record |= {"over_bytes": 0 if feasible else 7, "ended": "finished", "evaluations": 100, "seconds": 2.0}
    return record | {"budget_s": 10.0} | more


def row(*cells):
    """One row of those cells."""
    return suite_page.rows_of(list(cells), "step")[0]


def test_auto_is_compared_with_the_best_that_fits():
    """A faster rival that does not fit is none; the bound is the best that any cell proves."""
    cells = [
        cell_of("p", "single", 10.0, fits=True),
        cell_of("p", "heft", 4.0, feasible=False, devices=2),
        cell_of("p", "tabu", 5.0, devices=2, bound_s=3.0),
        cell_of("p", "auto", 5.1, devices=2, bound_s=4.08),
    ]
    made = row(*cells)
    assert made.methods == ["tabu", "auto", "single", "heft"]
    assert made.rival == "tabu"
    assert made.versus == pytest.approx(0.02)
    assert made.gap("auto") == pytest.approx(0.2)
    assert made.kind == "parallel"


def test_kinds():
    """Memory, where the fastest single device does not fit; parallel, where two devices save 20 %; else nothing."""
    one = cell_of("p", "single", 10.0, fits=True)
    assert row(one, cell_of("p", "auto", 8.1, devices=2)).kind == ""
    assert row(one, cell_of("p", "auto", 8.0, devices=2)).kind == "parallel"
    assert row(one | {"fits": False}, cell_of("p", "auto", 9.9, devices=2)).kind == "memory"


def test_feasible_beats_infeasible_on_the_page():
    """Where only one of the two fits, that is said instead of a percentage."""
    ours, theirs = cell_of("p", "auto", 5.0), cell_of("p", "tabu", 6.0)
    assert row(ours, theirs | {"feasible": False}).versus == -math.inf
    assert row(ours | {"feasible": False}, theirs).versus == math.inf
    assert row(theirs).versus is None


def test_the_summary_counts_misses():
    """More than 0.5 % above the best rival is a miss, listed with the rival, the worst first."""
    cells = []
    for name, value in (("near", 1.005), ("far", 1.2), ("off", 1.01), ("below", 0.9)):
        cells += [cell_of(name, "tabu", 1.0), cell_of(name, "auto", value, bound_s=0.45)]
    text = suite_page.summary(suite_page.rows_of(cells, "step"))
    assert "in 2 of 4, and below every rival in 1." in text[1]
    assert [line for line in text if line.startswith("- Missed")] == [
        "- Missed: far, +20.00 % (tabu).",
        "- Missed: off, +1.00 % (tabu).",
    ]


def test_the_small_suite_counts_what_is_found(tmp_path):
    """An optimum is found at its value or below; misses and bounds above an optimum are listed."""
    cells = []
    for k, value, bound in ((0, 1.0, 0.9), (1, 1.1, 1.0), (2, 0.95, 1.2)):
        truth = {"single_s": 2.0, "needs_two": True, "memory_binds": False}
        cells += [
            cell_of(str(k), "brute-force", 1.0, **truth),
            cell_of(str(k), "auto", value),
            cell_of(str(k), "bound", None, bound_s=bound),
        ]
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- small: begin -->\nold\n<!-- small: end -->\nafter\n")
    suite_page.write(page, [record | {"suite": "small"} for record in cells], 240)
    text = page.read_text()
    assert "`auto` finds the optimum of 2 of 3 (66.7 %)" in text
    assert "missed: problem 1, +10.00 %" in text
    assert "above the optimum in 1 of 3" in text
    assert text.startswith("before\n<!-- small: begin -->\n- 3 of 240")
    assert text.endswith("<!-- small: end -->\nafter\n")
    assert "old" not in text


def test_a_page_without_marks_is_refused(tmp_path):
    """Tables go between marks only."""
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="marks"):
        suite_page.write(page, [cell_of("p", "auto", 1.0)], 1)


def test_children_are_cut_refused_and_survived():
    """A process that takes too long is killed; an error of ours is a refusal, any other a failure."""

    def refuse():
        raise InputError("no,\nthanks")

    def fail():
        raise ZeroDivisionError("oops")

    assert suite.in_child(lambda: {"ended": "finished"}, 20.0) == {"ended": "finished"}
    assert suite.in_child(lambda: time.sleep(60), 0.2) == {"ended": "not finished"}
    assert suite.in_child(refuse, 20.0) == {"ended": "refused", "why": "no, thanks"}
    assert suite.in_child(fail, 20.0)["why"] == "ZeroDivisionError: oops"
    assert suite.in_child(lambda: sys.exit(3), 20.0)["ended"] == "failed"


def test_a_cell_is_judged_again():
    """A cell has the value that the simulator gives its placement, and the devices that work."""
    problem = small_problem()
    expected = search(problem, "round-robin")  # compiles, so that the cell has its time to itself
    found = suite.cell(SimulatorEvaluator(problem), "round-robin", suite.Effort(1.0, 5.0, 0))
    assert found["value_s"] == expected.value_s
    assert found["ended"] == "finished"
    assert found["devices"] == 3
    assert "placement" not in found
    single = suite.cell(SimulatorEvaluator(problem), "single", suite.Effort(1.0, 5.0, 0))
    assert (single["why"], single["fits"], single["evaluations"]) == ("single:gpu:0", True, 3)


def test_cells_resume(tmp_path):
    """Cells of the same problem are not run again; a torn last line, another problem and `again` are."""
    path = tmp_path / "cells.jsonl"
    cells = suite.Cells(path)
    for method in ("auto", "tabu"):
        cells.add(cell_of("p", method, 1.0) | {"fingerprint": "a"})
    with path.open("a") as file:
        file.write('{"suite": "st')
    again = suite.Cells(path)
    assert again.has("step", "p", "tabu", {"fingerprint": "a"})
    assert not again.has("step", "p", "tabu", {"fingerprint": "b"})
    again.add(cell_of("q", "tabu", 1.0) | {"fingerprint": "a"})
    assert suite.Cells(path).has("step", "q", "tabu", {"fingerprint": "a"})
    again.forget("step", ["auto"])
    assert [json.loads(line)["method"] for line in path.read_text().splitlines()] == ["tabu", "tabu"]


def test_the_suite_is_as_large_as_it_is_said():
    """28 step problems or more under different names, the nine throughput workloads, and one of 40,000 operations."""
    names = [entry.name for entry in suite_problems.STEP]
    assert len(set(names)) == len(names) >= 28
    assert len(suite_problems.TARNAWSKI) == len(suite_problems.PUBLISHED_MS) == 9
    assert "nmt-8 on k40x8" in names
    assert [entry.graph for entry in suite_problems.named(["vgg16"])] == ["pipedream:vgg16"]


def test_small_problems_are_small_and_the_same():
    """No problem has more placements than it is said; one is held to its optimum."""
    for k in range(0, 60, 7):
        made = small_problems.problem(k)
        assert math.prod(made.choices.sum(axis=1).tolist()) <= small_problems.MOST
        assert workload_fingerprint(made.graph) == workload_fingerprint(small_problems.problem(k).graph)
    assert search(small_problems.problem(4), "brute-force", Evaluations(20_000)).outcome.value_ps == 786_309_206


def test_small_problems_are_solved_with_what_binds():
    """Of the first four training steps those with little memory are bound by it."""
    solved = [small_problems.solve(small_problems.problem(k)) for k in (4, 9)]
    assert [each.memory_binds for each in solved] == [False, True]
    assert all(each.loose_s <= each.optimum_s <= each.single_s for each in solved)
