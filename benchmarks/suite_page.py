"""The tables of docs/benchmarks-methods.md, from the cells of suite.py."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import suite_problems

Record = dict[str, Any]

AUTO, SINGLE, BOUND, TRUTH = "auto", "single", "bound", "brute-force"
NEAR = 0.005
"""How far above the best rival still counts as no worse."""
MUCH = 0.2
"""By how much two devices must beat one for a problem to count as parallel."""


@dataclass(frozen=True)
class Row:
    """The cells of one problem, by method."""

    problem: str
    cells: dict[str, Record]

    def rank(self, method: str) -> tuple[int, float]:
        """Smaller is better: feasible by value, then by bytes over, then without a value."""
        cell = self.cells.get(method, {})
        if cell.get("value_s") is None:
            return 2, math.inf
        return (0, cell["value_s"]) if cell["feasible"] else (1, float(cell["over_bytes"]))

    @property
    def methods(self) -> list[str]:
        """Methods that gave a placement, the best first; ties by name."""
        given = [m for m, cell in self.cells.items() if m not in (BOUND, TRUTH) and cell.get("value_s") is not None]
        return sorted(given, key=lambda m: (self.rank(m), m))

    @property
    def rival(self) -> str | None:
        """The best method beside auto."""
        return next((m for m in self.methods if m != AUTO), None)

    @property
    def versus(self) -> float | None:
        """How far auto is above the best rival; infinite if only the rival is feasible, minus that if only auto is."""
        if AUTO not in self.methods or self.rival is None:
            return None
        ours, theirs = self.rank(AUTO), self.rank(self.rival)
        if ours[0] != theirs[0]:
            return math.inf if ours[0] > theirs[0] else -math.inf
        return 0.0 if ours == theirs else ours[1] / theirs[1] - 1 if theirs[1] else math.inf

    @property
    def bound_s(self) -> float | None:
        """The best bound that any cell proves."""
        bounds = [cell["bound_s"] for cell in self.cells.values() if cell.get("bound_s") is not None]
        return max(bounds, default=None)

    def gap(self, method: str) -> float | None:
        """(value - bound) / value."""
        kind, value = self.rank(method)
        return None if kind or self.bound_s is None else max(0.0, 1 - self.bound_s / value) if value else 0.0

    @property
    def kind(self) -> str:
        """`memory` if the fastest single device does not fit; `parallel` if two beat one by 20 %; or nothing."""
        single = self.cells.get(SINGLE, {})
        if not self.methods or "fits" not in single:
            return ""
        if not single["fits"]:
            return "memory"
        best = self.methods[0]
        much = self.rank(best) <= (0, (1 - MUCH) * self.rank(SINGLE)[1])
        return "parallel" if much and self.cells[best]["devices"] > 1 else ""


def rows_of(records: Sequence[Record], suite: str) -> list[Row]:
    """The rows of a suite, in the order in which its problems were begun."""
    rows: dict[str, Row] = {}
    for record in records:
        if record["suite"] == suite:
            rows.setdefault(record["problem"], Row(record["problem"], {})).cells[record["method"]] = record
    return list(rows.values())


# ---- step and tarnawski ----------------------------------------------------------------------------


def milliseconds(row: Row, method: str) -> str:
    """A value, with what is wrong with it."""
    cell = row.cells.get(method)
    if cell is None:
        return "-"
    if cell.get("value_s") is None:
        return cell["ended"]
    return f"{cell['value_s'] * 1e3:,.3f}" + ("" if cell["feasible"] else f" ({cell['reason']})")


def percent(share: float | None, digits: int = 2) -> str:
    """A share in percent, with its sign."""
    if share is None:
        return "-"
    if math.isinf(share):
        return "only the rival fits" if share > 0 else "only auto fits"
    return f"{100 * share:+.{digits}f} %"


def speed(row: Row, method: str | None) -> str:
    """Evaluations per second."""
    cell = row.cells.get(method or "", {})
    return f"{cell['evaluations'] / cell['seconds']:,.0f}" if cell.get("seconds") and cell.get("evaluations") else "-"


def main_table(rows: Sequence[Row]) -> list[str]:
    """One line for every problem, the largest gap of auto first; above them those without a bound."""
    titles = ["problem", ">operations", ">parallelism", "kind", ">one device", ">auto", ">best rival", "by"]
    titles += [">auto against it", "feasible", ">gap to bound", ">evaluations/s", ">the rival's"]

    def badness(row: Row) -> tuple[float, str]:
        gap = row.gap(AUTO)
        return (-math.inf if gap is None else -gap, row.problem)

    lines = []
    for row in sorted(rows, key=badness):
        facts = next(iter(row.cells.values()))
        gap = row.gap(AUTO)
        lines.append([
            row.problem, f"{facts['operations']:,}", f"{facts['parallelism']:.2f}", row.kind,
            milliseconds(row, SINGLE), milliseconds(row, AUTO), milliseconds(row, row.rival or ""), row.rival or "-",
            percent(row.versus), "yes" if AUTO in row.methods and not row.rank(AUTO)[0] else "no",
            "-" if gap is None else f"{100 * gap:.1f} %", speed(row, AUTO), speed(row, row.rival),
        ])  # fmt: skip
    return table(titles, lines)


def method_table(rows: Sequence[Row]) -> list[str]:
    """One line for every problem, one column for every method: percent above the best of all."""
    methods = list(dict.fromkeys(m for row in rows for m in row.cells if m not in (BOUND, TRUTH)))
    lines = []
    for row in rows:
        best = row.rank(row.methods[0]) if row.methods else (2, math.inf)
        line = [row.problem]
        for method in methods:
            kind, value = row.rank(method)
            if kind == 2:
                ended = row.cells.get(method, {}).get("ended", "")
                line.append({"not finished": "cut", "refused": "n/a", "failed": "failed"}.get(ended, "-"))
            elif kind == 1:
                line.append("over")
            else:
                line.append("**best**" if (kind, value) == best else f"{100 * (value / best[1] - 1):.1f}")
        lines.append(line)
    return table(["problem", *(f">{method}" for method in methods)], lines)


def overview(rows: Sequence[Row]) -> list[str]:
    """One line for every method: how often it is the best, near it or feasible, and what it takes."""
    methods = list(dict.fromkeys(m for row in rows for m in row.cells if m not in (BOUND, TRUTH)))
    lines = []
    for method in methods:
        tried = [row for row in rows if method in row.methods]
        shares = [row.rank(method)[1] / row.rank(row.methods[0])[1] - 1 for row in tried if not row.rank(method)[0]]
        cells = [row.cells[method] for row in tried]
        rates = [cell["evaluations"] / cell["seconds"] for cell in cells if cell["seconds"]]
        lines.append([
            method, str(len(tried)), str(len(shares)), str(sum(share <= NEAR for share in shares)),
            f"{100 * statistics.median(shares):.1f}" if shares else "-",
            f"{statistics.median(cell['seconds'] for cell in cells):.2f}" if cells else "-",
            f"{statistics.median(rates):,.0f}" if rates else "-",
        ])  # fmt: skip
    lines.sort(key=lambda line: (-int(line[3]), -int(line[2]), line[0]))
    titles = ["method", ">placed", ">of these feasible", ">within 0.5 % of the best", ">median % above the best"]
    return table([*titles, ">median seconds", ">median evaluations/s"], lines)


def summary(rows: Sequence[Row]) -> list[str]:
    """What the tables say, in sentences."""
    compared = [row for row in rows if row.versus is not None]
    near = [row for row in compared if row.versus is not None and row.versus <= NEAR]
    misses = sorted((row for row in compared if row not in near), key=lambda row: -(row.versus or 0))
    kinds = [row.kind for row in rows]
    lines = [
        f"- {len(rows)} problems. In {kinds.count('parallel')} two devices or more beat the best single one by 20 %, "
        f"and in {kinds.count('memory')} the fastest single one does not fit.",
        f"- `auto` is at most 0.5 % above the best rival in {len(near)} of {len(compared)}, and below every rival in "
        f"{sum(row.versus is not None and row.versus < 0 for row in compared)}.",
    ]
    lines += [f"- Missed: {row.problem}, {percent(row.versus)} ({row.rival})." for row in misses]
    fits = [row for row in compared if row.rival and not row.rank(row.rival)[0]]
    lines.append(
        f"- Some rival is feasible in {len(fits)}; `auto` is feasible in {sum(not row.rank(AUTO)[0] for row in fits)} "
        "of these."
    )
    gaps = [gap for row in rows if (gap := row.gap(AUTO)) is not None]
    if gaps:
        lines.append(f"- Its median gap to the proven bound is {100 * statistics.median(gaps):.1f} %.")
    over = [
        row for row in rows if row.rank(AUTO)[0] < 2 and row.cells[AUTO]["seconds"] > 1.1 * row.cells[AUTO]["budget_s"]
    ]
    late = ", ".join(f"{row.problem} ({row.cells[AUTO]['seconds']:.1f} s)" for row in over)
    return lines + ([f"- It took over 10 % more than its time on {late}."] if over else [])


def published(rows: Sequence[Row]) -> list[str]:
    """Auto on the throughput workloads against what was published of them."""
    lines = []
    for row in rows:
        known = suite_problems.PUBLISHED_MS.get(row.problem.rpartition("/")[2])
        if known is None or row.rank(AUTO)[0]:
            continue
        ours = row.rank(AUTO)[1] * 1e3
        lines.append([
            row.problem.rpartition("/")[2], f"{known[0]:.3f}", f"{known[1]:.3f}", f"{ours:.3f}",
            percent(ours / known[0] - 1), percent(ours / known[1] - 1),
        ])  # fmt: skip
    titles = ["workload", ">contiguous optimum (ms)", ">best known (ms)", ">auto (ms)", ">against the optimum"]
    return ["", *table([*titles, ">against the best known"], lines)] if lines else []


# ---- small -----------------------------------------------------------------------------------------


def small(rows: Sequence[Row], count: int) -> list[str]:
    """The share of optima found by each method, each miss, and whether a bound ever exceeds an optimum."""
    rows = [row for row in rows if TRUTH in row.cells and math.isfinite(row.cells[TRUTH]["value_s"])]
    if not rows:
        return []
    truths = [row.cells[TRUTH] for row in rows]
    hard = sum(truth["needs_two"] or truth["memory_binds"] for truth in truths)
    lines = [
        f"- {len(rows)} of {count} problems, {hard} of which need two devices ({sum(t['needs_two'] for t in truths)}) "
        f"or bind memory ({sum(t['memory_binds'] for t in truths)})."
    ]
    for method in dict.fromkeys(m for row in rows for m in row.cells if m not in (BOUND, TRUTH)):
        tried = [row for row in rows if method in row.cells]
        missed = [row for row in tried if not found(row, method)]
        took = [row.cells[method]["seconds"] for row in tried if row not in missed]
        share = 100 * (1 - len(missed) / len(tried))
        seconds = f", in {statistics.median(took):.2f} s at the median" if took else ""
        lines.append(
            f"- `{method}` finds the optimum of {len(tried) - len(missed)} of {len(tried)} ({share:.1f} %){seconds}."
        )
        for row in missed:
            kind, value = row.rank(method)
            far = percent(value / row.cells[TRUTH]["value_s"] - 1) if kind == 0 else "no feasible placement"
            lines.append(f"  - missed: problem {row.problem}, {far}")
    bounds = [row for row in rows if row.bound_s is not None]
    wrong = [row for row in bounds if (row.bound_s or 0) > row.cells[TRUTH]["value_s"] * (1 + 1e-12)]
    lines.append(f"- A bound is above the optimum in {len(wrong)} of {len(bounds)} problems that have one.")
    return lines + [f"  - problem {row.problem}" for row in wrong]


def found(row: Row, method: str) -> bool:
    """Whether a method is at the optimum, or below it by windows that brute force leaves at their defaults."""
    kind, value = row.rank(method)
    return kind == 0 and bool(value <= row.cells[TRUTH]["value_s"] * (1 + 1e-12))


# ---- the page --------------------------------------------------------------------------------------


def table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    """A table of markdown; a title that begins with > is of a column of numbers."""
    heads = [title.removeprefix(">") for title in titles]
    rule = ["--:" if title.startswith(">") else "---" for title in titles]
    return ["| " + " | ".join(line) + " |" for line in (heads, rule, *lines)]


def write(page: Path, records: Sequence[Record], count: int) -> None:
    """Put the tables of every suite between its marks; a suite without cells keeps what is there."""
    text = page.read_text()
    for suite in ("step", "tarnawski", "small"):
        rows = rows_of(records, suite)
        if not rows:
            continue
        if suite == "small":
            body = small(rows, count)
        else:
            body = [*summary(rows), "", *main_table(rows), *(published(rows) if suite == "tarnawski" else [])]
            body += ["", *overview(rows), "", "Percent above the best of all methods:", "", *method_table(rows)]
        start, end = f"<!-- {suite}: begin -->", f"<!-- {suite}: end -->"
        if start not in text or end not in text:
            raise SystemExit(f"{page} has no marks {start} and {end}; add them where the tables are to be")
        before, _, rest = text.partition(start)
        text = "\n".join([before + start, *body, end + rest.partition(end)[2]])
    page.write_text(text)
