"""Sizes of the source, against the budgets of the design: `python -m tests.size_report` prints them."""

import ast
import statistics
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "placewright"
MODULE_LINES, MEDIAN_LINES, FUNCTION_LINES, PARAMETERS = 400, 150, 60, 6
LONG_FUNCTIONS, MANY_PARAMETERS = 3, 8


def functions():
    """(place, lines, parameters) of every function; `self` and keyword-only arguments do not count."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
                yield f"{path.relative_to(SOURCE)}:{node.name}", node.end_lineno - node.lineno + 1, len(names)


def modules():
    """Lines of every module."""
    return {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in sorted(SOURCE.rglob("*.py"))}


def over_budget():
    """What breaks a budget, in words."""
    sizes, shapes = modules(), list(functions())
    long = [f"{place} has {lines} lines" for place, lines, _ in shapes if lines > FUNCTION_LINES]
    many = [f"{place} has {count} parameters" for place, _, count in shapes if count > PARAMETERS]
    found = [f"{name} has {lines} lines" for name, lines in sizes.items() if lines > MODULE_LINES]
    if statistics.median(sizes.values()) > MEDIAN_LINES:
        found.append(f"the median module has {statistics.median(sizes.values())} lines")
    return found + (long if len(long) > LONG_FUNCTIONS else []) + (many if len(many) > MANY_PARAMETERS else [])


def main():
    """Print the report; exit 1 if a budget is broken."""
    sizes, shapes = modules(), list(functions())
    print(f"{len(sizes)} modules, {sum(sizes.values()):,} lines, median {statistics.median(sizes.values()):.0f}, "
          f"largest {max(sizes.values())} ({max(sizes, key=sizes.get)})")  # fmt: skip
    for place, lines, _ in sorted(shapes, key=lambda shape: -shape[1]):
        if lines > FUNCTION_LINES:
            print(f"  {lines} lines: {place}")
    print(f"  {sum(count > PARAMETERS for _, _, count in shapes)} functions with more than {PARAMETERS} parameters")
    problems = over_budget()
    print("\n".join(f"over budget: {problem}" for problem in problems) or "within budget")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
