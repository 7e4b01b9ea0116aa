"""Every method on every problem of a suite, a cell at a time, and the tables of docs/benchmarks-methods.md.

    PYTHONPATH=src python benchmarks/suite.py                               # the `step` suite, all methods, 10 s each
    PYTHONPATH=src python benchmarks/suite.py --suite tarnawski             # the throughput workloads, by max_load
    PYTHONPATH=src python benchmarks/suite.py --suite small --seconds 5     # generated problems against brute force
    PYTHONPATH=src python benchmarks/suite.py --page docs/benchmarks-methods.md  # the tables, of all that was run

A cell is a problem and a method. A method that never ends by itself, and `auto`, has `--seconds`; any other runs once,
and is cut after `--limit`. Each cell runs in a process of its own, which is killed some time after that, and lands in
a file of JSON lines as soon as it is done; what is there is not run again, so a run can be stopped and resumed.
`--again auto` forgets the cells of a method first. Every placement is simulated once more outside that process, and
that value is the one that counts. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import placewright as pw
import small_problems
import suite_page
import suite_problems
from placewright.bounds import parallelism
from placewright.errors import PlacewrightError
from placewright.evaluate import SimulatorEvaluator
from placewright.fingerprints import machine_fingerprint, workload_fingerprint
from placewright.methods import NAMED, make_placer
from placewright.problem import Problem
from placewright.stop import Criterion, Evaluations, Progress, Seconds
from placewright.testing import small_problem

SUITES = ("step", "tarnawski", "small")
TIMED = ("auto",)
"""Methods that get the seconds of those that never end, whether or not they would end."""
SINGLE, BOUND, TRUTH = "single", "bound", "brute-force"
"""Cells that are no method's: the best of one device, the best proved bound, the optimum of a small problem."""
GRACE_S = 60.0
"""How long a process may take beyond its time before it is killed."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Effort:
    """How long a method may take."""

    seconds: float
    limit: float
    seed: int


class Reached(Criterion):
    """When a feasible value is no more than this."""

    def __init__(self, value_s: float) -> None:
        self.value_s = value_s

    def __call__(self, progress: Progress) -> bool:
        return progress.best_s <= self.value_s


# ---- a cell ----------------------------------------------------------------------------------------


def in_child(work: Callable[[], Record], limit_s: float) -> Record:
    """What `work` returns in a process of its own, or why it returned nothing."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        try:
            there.send(work())
        except PlacewrightError as error:
            there.send({"ended": "refused", "why": " ".join(str(error).split())})
        except Exception as error:  # a table must not end because a method does
            there.send({"ended": "failed", "why": f"{type(error).__name__}: {error}"})

    process = context.Process(target=run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside the idle threads of libraries
        process.start()
    there.close()
    try:
        found: Record = here.recv() if here.poll(limit_s) else {"ended": "not finished"}
    except EOFError:
        found = {"ended": "failed", "why": "its process died"}
    process.join(1.0)
    if process.is_alive():
        process.kill()
        process.join()
    return found


def attempt(evaluator: SimulatorEvaluator, method: str, effort: Effort, enough_s: float = 0.0) -> Record:
    """One search by a method, in this process."""
    problem = evaluator.problem
    placer = make_placer(method, problem)
    timed = placer.endless or method in TIMED
    limit = effort.seconds if timed else effort.limit
    stop = Seconds(limit) | Reached(enough_s) if enough_s else Seconds(limit)
    result = pw.search(problem, placer, stop, seed=effort.seed, evaluator=evaluator)
    cut = result.ended == "stopped" and not timed
    return {
        "ended": "not finished" if cut else result.ended,
        "timed": timed,
        "seconds": result.seconds,
        "evaluations": result.evaluations,
        "bound_s": result.bound_s,
        "placement": result.placement,
        "improved": [list(step) for step in result.improvements[-1:]],
    }


def best_single(evaluator: SimulatorEvaluator) -> Record:
    """The best of all methods `single:DEVICE`; `fits` says whether the fastest of them is feasible."""
    problem = evaluator.problem
    results = [pw.search(problem, f"single:{device.name}", evaluator=evaluator) for device in problem.machine.devices]
    best = min(results, key=lambda result: result.outcome.rank)
    return {
        "ended": "finished",
        "timed": False,
        "seconds": sum(result.seconds for result in results),
        "evaluations": sum(result.evaluations for result in results),
        "placement": best.placement,
        "why": best.method,
        "fits": min(results, key=lambda result: result.value_s).feasible,
    }


def proved(problem: Problem) -> Record:
    """The best bound, and how much could run side by side."""
    from placewright.bounds import lower_bound

    began = time.perf_counter()
    bound = lower_bound(problem)
    return {"ended": "finished", "bound_s": bound.value_s, "why": bound.by, "seconds": time.perf_counter() - began}


def judged(evaluator: SimulatorEvaluator, record: Record) -> Record:
    """The record with its placement replaced by what the simulator says of it."""
    placement, problem = record.pop("placement", None), evaluator.problem
    if placement is None:
        return record
    outcome = evaluator.simulator.simulate([placement])[0]
    working = problem.costs.seconds[range(problem.n_ops), placement.devices] > 0
    return record | {
        "value_s": None if outcome.value_ps is None else outcome.value_s,
        "feasible": outcome.feasible,
        "reason": outcome.reason,
        "over_bytes": sum(outcome.over_bytes),
        "devices": len(set(placement.devices[working].tolist())),
    }


def cell(evaluator: SimulatorEvaluator, method: str, effort: Effort, enough_s: float = 0.0) -> Record:
    """What a method makes of a problem."""
    if method == BOUND:
        return in_child(lambda: proved(evaluator.problem), effort.limit + GRACE_S)
    if method == SINGLE:
        return judged(evaluator, in_child(lambda: best_single(evaluator), effort.limit + GRACE_S))
    longest = max(effort.seconds, effort.limit) + GRACE_S
    return judged(evaluator, in_child(lambda: attempt(evaluator, method, effort, enough_s), longest))


# ---- the suites ------------------------------------------------------------------------------------


class Cells:
    """The file of cells: what was done, by suite, problem and method."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[tuple[str, str, str], Record] = {}
        text = path.read_text() if path.is_file() else ""
        self.torn = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # the last one, where a run was killed
                continue
            self.records[record["suite"], record["problem"], record["method"]] = record

    def add(self, record: Record) -> None:
        """Keep a cell, at once."""
        self.records[record["suite"], record["problem"], record["method"]] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write("\n" * self.torn + json.dumps(record) + "\n")
            self.torn = False

    def has(self, suite: str, problem: str, method: str, asked: Record) -> bool:
        """Whether the cell is there, for a problem of this fingerprint, with this budget and seed."""
        record = self.records.get((suite, problem, method))
        return record is not None and asked.items() <= record.items()

    def forget(self, suite: str, methods: Sequence[str]) -> None:
        """Drop the cells of methods, in the file too."""
        self.records = {key: record for key, record in self.records.items() if key[0] != suite or key[2] not in methods}
        if self.path.is_file():
            draft = self.path.with_suffix(".new")
            draft.write_text("".join(json.dumps(record) + "\n" for record in self.records.values()))
            draft.replace(self.path)


def fingerprint(problem: Problem) -> str:
    """Of what is asked: the work, the machine and the question."""
    costs = hashlib.sha256(problem.costs.seconds.tobytes()).hexdigest()  # the other two leave measured seconds out
    parts = (workload_fingerprint(problem.graph), machine_fingerprint(problem.machine), costs)
    return "-".join([*(part[:10] for part in parts), problem.objective, problem.discipline])


def run(suite: str, given: argparse.Namespace, cells: Cells) -> None:
    """Run the cells that are missing."""
    effort = Effort(given.seconds, given.limit, given.seed)
    for name, make in problems(suite, given):
        problem = make()
        asked = {"fingerprint": fingerprint(problem), "budget_s": given.seconds, "seed": given.seed}
        missing = [method for method in wanted(suite, given) if not cells.has(suite, name, method, asked)]
        if not missing:
            continue
        evaluator = SimulatorEvaluator(problem)  # lowered once, before the cells, so that none pays for it
        facts = {"operations": problem.n_ops, "groups": problem.n_groups, "parallelism": parallelism(problem)}
        for method in missing:
            if method == TRUTH:
                record = in_child(lambda p=problem: truth(p), 600.0)  # type: ignore[misc]
            else:
                enough = cells.records.get((suite, name, TRUTH), {}).get("value_s", 0.0)
                record = cell(evaluator, method, effort, enough if math.isfinite(enough) else 0.0)
            cells.add({"suite": suite, "problem": name, "method": method} | asked | facts | record)
            print(line(cells.records[suite, name, method]), flush=True)


def problems(suite: str, given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """The names of a suite's problems, and what makes them."""
    if suite == "small":
        for number in range(given.count):
            yield str(number), lambda number=number: small_problems.problem(number)  # type: ignore[misc]
        return
    entries = suite_problems.STEP if suite == "step" else suite_problems.TARNAWSKI
    for entry in suite_problems.named(given.problems, entries):
        if entry.captured and not suite_problems.cached(entry, given.cache).is_file():
            # In another process: this one forks, and must not hold the threads of PyTorch.
            command = [sys.executable, suite_problems.__file__, entry.name, "--exact", "--cache", str(given.cache)]
            subprocess.run(command, check=True)
        yield entry.name, lambda entry=entry: suite_problems.build(entry, given.cache)  # type: ignore[misc]


def wanted(suite: str, given: argparse.Namespace) -> list[str]:
    """The methods to run on every problem, in their order."""
    if suite == "small":
        return [TRUTH, BOUND, *(given.methods or ["auto"])]
    named = given.methods or [name for name in NAMED if name != TRUTH]
    return list(dict.fromkeys([SINGLE, BOUND, *named]))


def truth(problem: Problem) -> Record:
    """The optimum of a small problem, and whether it needs two devices or binds memory."""
    solved = small_problems.solve(problem)
    return {
        "ended": "finished",
        "value_s": solved.optimum_s,
        "feasible": True,
        "single_s": solved.single_s,
        "needs_two": solved.needs_two,
        "memory_binds": solved.memory_binds,
        "evaluations": solved.placements,
    }


def line(record: Record) -> str:
    """A cell in a line."""
    value = record.get("value_s")
    text = f"{record['problem']}: {record['method']} " + ("-" if value is None else f"{value * 1e3:.4f} ms")
    if record.get("feasible") is False:
        text += f" infeasible ({record['reason']})"
    if record.get("bound_s") is not None:
        text += f", at least {record['bound_s'] * 1e3:.4f} ms"
    if "evaluations" in record and "seconds" in record:
        text += f", {record['evaluations']} evaluations in {record['seconds']:.1f} s"
    return text + (f", {record['ended']}" if record["ended"] not in ("finished", "stopped") else "")


def warm_up(methods: Sequence[str], objective: str) -> None:
    """Compile what the methods use, on a tiny problem, so that no cell pays for it."""
    evaluator = SimulatorEvaluator(small_problem().replace(objective=objective))
    pw.search(evaluator.problem, "random", Evaluations(1000), evaluator=evaluator)
    for method in methods:
        if method in NAMED:
            in_child(lambda m=method: attempt(evaluator, m, Effort(0.5, 0.5, 0)), 600.0)  # type: ignore[misc]


def main() -> None:
    """Run cells, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="step")
    parser.add_argument("--problems", nargs="*", default=[], help="globs, or parts of names; default: all")
    parser.add_argument("--methods", type=lambda text: text.split(","), help="with commas; default: all that apply")
    parser.add_argument("--again", type=lambda text: text.split(","), default=[], help="methods to run once more")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=small_problems.COUNT, help="of small problems")
    parser.add_argument("--cache", type=Path, default=suite_problems.CACHE)
    parser.add_argument("--cells", type=Path, default=suite_problems.CACHE / "cells.jsonl")
    parser.add_argument("--page", type=Path, help="write the tables of all cells into this page, and run nothing")
    given = parser.parse_args()
    for method in [*(given.methods or []), *given.again]:
        if method not in (*NAMED, SINGLE, BOUND):
            parser.error(f"method {method!r} is unknown; the methods are {', '.join([SINGLE, BOUND, *NAMED])}")
    cells = Cells(given.cells)
    if given.page:
        suite_page.write(given.page, list(cells.records.values()), small_problems.COUNT)
        return
    cells.forget(given.suite, given.again)
    if given.suite == "tarnawski":
        warm_up(wanted(given.suite, given), "max_load")
    elif given.suite == "step":
        warm_up(wanted(given.suite, given), "step")
    run(given.suite, given, cells)


if __name__ == "__main__":
    sys.exit(main())
