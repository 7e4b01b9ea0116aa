"""Which operators and expressions a saved program may hold."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

import torch

from placewright.capture.torch_private import has_kernel
from placewright.errors import FileError

_OPERATOR = re.compile(r"torch\.ops\.(aten|prims|torchvision)\.([A-Za-z_]\w{0,99})\.([A-Za-z_]\w{0,99})", re.ASCII)
_HIGHER_ORDER = frozenset(
    f"torch.ops.higher_order.{name}"
    for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast", "cond", "while_loop", "map_impl", "scan")
)
_ON_NUMBERS = frozenset(
    [f"_operator.{name}" for name in ("getitem", "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos")]
    + [f"_operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_")]
    + [f"math.{name}" for name in ("ceil", "floor", "trunc")]
    + [f"torch.sym_{name}" for name in ("int", "float", "not", "max", "min", "ite", "sum", "sqrt")]
)
_FUNCTIONS = re.compile(
    "FloorDiv|ModularIndexing|Where|PythonMod|Mod|CleanDiv|CeilToInt|FloorToInt|CeilDiv|LShift|RShift|PowByNatural|"
    "FloatPow|FloatTrueDiv|IntTrueDiv|IsNonOverlappingAndDenseIndicator|TruncToFloat|TruncToInt|RoundToInt|"
    "RoundDecimal|ToFloat|Identity|Max|Min|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|Abs|ceiling|floor|"
    "Symbol|Integer|Rational|Float|Add|Mul|Pow|Equality|Unequality|StrictLessThan|LessThan|"
    "StrictGreaterThan|GreaterThan"
)
"""Functions of sizes that torch, by way of sympy, writes into expressions."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,40}|-?[0-9]{1,18}(\.[0-9]{1,18})?")
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword, ast.Name,
    ast.Constant, ast.Load, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_LONGEST = 2000
_LARGEST_POWER = 8
_MOST_BITS = 8192
"""Of a number that an expression may come to: powers of powers, and their products, could fill the memory."""
_MOST_TERMS = 1000
"""Of an expression that is multiplied out, as torch does."""
_SYMBOL_BITS = 64


def check_operator(target: str, path: object) -> None:
    """Refuse a call of anything but operators that compute on tensors, and arithmetic on sizes."""
    if target in _ON_NUMBERS or target in _HIGHER_ORDER:
        return
    match = _OPERATOR.fullmatch(target)
    if match is None:
        what = "operators of aten, prims and torchvision are read, and no others"
        raise FileError(path, "graph", f"calls {target[:120]!r}; {what}")
    found: Any = getattr(getattr(getattr(torch.ops, match[1]), match[2], None), match[3], None)
    if not isinstance(found, torch._ops.OpOverload) or not has_kernel(found):
        raise FileError(path, "graph", f"calls {target[:120]!r}, which this torch ({torch.__version__}) does not have")
    if any(argument.name in ("filename", "file", "path") for argument in found._schema.arguments):
        raise FileError(path, "graph", f"calls {target[:120]!r}, which reads or writes files")


def check_expression(text: object, path: object) -> None:
    """Refuse a size that is no arithmetic on symbols: torch evaluates it."""
    if not isinstance(text, str) or len(text) > _LONGEST or not _is_arithmetic(text):
        raise FileError(path, "expr_str", f"{str(text)[:80]!r} is no size that torch writes")


def _is_arithmetic(text: str) -> bool:
    """Whether a text is numbers, symbols, arithmetic, and functions of sizes."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    nodes = list(ast.walk(tree))
    return all(isinstance(node, _ALLOWED) and _is_harmless(node) for node in nodes) and _is_bounded(nodes)


def _is_harmless(node: ast.AST) -> bool:
    """Whether one part of an expression is what a size may hold."""
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and _FUNCTIONS.fullmatch(node.func.id) is not None
        return known and all(isinstance(word.value, ast.Constant) for word in node.keywords) and _is_small_power(node)
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float, bool) or _WORD.fullmatch(str(node.value)) is not None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _is_small(node.right)
    return not isinstance(node, ast.MatMult | ast.LShift)


def _is_small_power(call: ast.Call) -> bool:
    """Whether a call is no power, or one with a small exponent; others could fill the memory."""
    return _called(call) not in _POWERS or (len(call.args) == 2 and _is_small(call.args[1]))


def _is_small(node: ast.expr) -> bool:
    """Whether an exponent is a small number."""
    value = _exponent(node)
    return value is not None and value <= _LARGEST_POWER


def _exponent(node: ast.expr) -> float | None:
    """Return the size of an exponent that is a number, without its sign."""
    if isinstance(node, ast.Call) and len(node.args) == 1:  # Integer(2)
        node = node.args[0]
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return abs(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else None


def _called(node: ast.AST) -> str:
    """Return the name of the function that a part of an expression calls."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _is_bounded(nodes: list[ast.AST]) -> bool:
    """Whether no part of an expression comes to more bits, or multiplied out to more terms, than are allowed.

    Parts come after what they are part of.
    """
    sizes: dict[ast.expr, tuple[float, float]] = {}
    for node in (each for each in reversed(nodes) if isinstance(each, ast.expr)):
        inner = (
            [*node.args, *(word.value for word in node.keywords)]
            if isinstance(node, ast.Call)
            else [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        )
        parts = [sizes[part] for part in inner]
        bits, terms = [part[0] for part in parts], [part[1] for part in parts]
        base, times = _power(node)
        if base is not None:
            sizes[node] = sizes[base][0] * times, sizes[base][1] ** times
        elif isinstance(node, ast.Constant):
            sizes[node] = node.value.bit_length() if isinstance(node.value, int) else _SYMBOL_BITS, 1
        elif isinstance(node, ast.Name):
            sizes[node] = _SYMBOL_BITS, 1
        elif _called(node) == "Mul" or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            sizes[node] = sum(bits), math.prod(terms)
        else:
            sizes[node] = max(bits, default=0) + len(bits), max(1, sum(terms))
        if sizes[node][0] > _MOST_BITS or sizes[node][1] > _MOST_TERMS:
            return False
    return True


def _power(node: ast.AST) -> tuple[ast.expr | None, float]:
    """Return the base of a power and its exponent, as at least 1; a shift to the left counts as one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, exponent = node.left, node.right
    elif isinstance(node, ast.Call) and _called(node) in _POWERS:
        base, exponent = node.args
    else:
        return None, 1.0
    return base, max(1.0, _exponent(exponent) or 0.0)
