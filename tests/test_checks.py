"""Checked reading: units, their edges, cycles, and faults that name file and place."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from placewright.checks import MAX_BYTES, Fields, describe, find_cycle, format_bytes, format_seconds, parse_bytes
from placewright.errors import FileError, InputError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("0", 0),
        ("7B", 7),
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("  1.5 KiB ", 1536),
        ("500MB", 500_000_000),
        ("1.1GB", 1_100_000_000),
        ("2KB", 2000),
        ("3TB", 3 * 10**12),
        ("2TiB", 2 << 40),
        ("0.5KiB", 512),
        ("007MiB", 7 << 20),
        (str(MAX_BYTES), MAX_BYTES),
        (str(MAX_BYTES - 1), MAX_BYTES - 1),
        ("1048576TiB", MAX_BYTES),
    ],
)
def test_parse_bytes(text, size):
    """A number with a unit, decimal or binary, in any case, is that many bytes, exactly where it is whole."""
    assert parse_bytes(text) == size
    assert type(parse_bytes(text)) is int


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1",
        "+1",
        "1e9",
        "1_000",
        ".5GiB",
        "1.GiB",
        "1,5GB",
        "4 GiBs",
        "4 G",
        "nan",
        "inf",
        "0x10",
        "١",
        "1 2",
    ],
)
def test_parse_bytes_refuses(text):
    """What is no plain number with a known unit is refused, quoted, with the units that there are."""
    with pytest.raises(InputError, match="is no size: write a number and B, KiB") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_parse_bytes_refuses_long_text_shortly():
    """A text that is too long to be a size is quoted in part only."""
    with pytest.raises(InputError, match="is no size") as caught:
        parse_bytes("1" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", [str(MAX_BYTES + 1), "1048577TiB", "9" * 63, "1048576.1TiB"])
def test_parse_bytes_has_a_largest_size(text):
    """One byte above the largest size is refused, with the limit."""
    with pytest.raises(InputError, match=f"largest size allowed, {MAX_BYTES} bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MAX_BYTES, "1048576.00 TiB"),
        (1_048_570, "1023.99 KiB"),
        (1_048_575, "1.00 MiB"),
        ((1 << 40) - 1, "1.00 TiB"),
        (4 << 30, "4.00 GiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format_bytes(count, text):
    """Bytes are shown in the largest unit that leaves 1 or more, after rounding."""
    assert format_bytes(count) == text


@settings(max_examples=200)
@given(st.integers(0, MAX_BYTES))
def test_format_bytes_reads_back(count):
    """What is shown reads back to within half of its last digit, and no unit is shown beyond 1023."""
    text = format_bytes(count)
    number, unit = text.split()
    assert unit == "TiB" or float(number) < 1024
    step = parse_bytes(f"1{unit}") * (Decimal("0.01") if unit != "B" else 0)
    if count <= MAX_BYTES - (1 << 40):
        assert abs(parse_bytes(text) - count) <= step / 2 + 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-0.0, "0 s"),
        (60, "60 s"),
        (1.2345678, "1.23457 s"),
        (1.0, "1 s"),
        (0.5, "500 ms"),
        (-0.5, "-500 ms"),
        (0.0056784, "5.6784 ms"),
        (9.012e-6, "9.012 us"),
        (43e-9, "43 ns"),
        (1e-12, "0.001 ns"),
        (0.9999999, "1 s"),
        (0.00099999999, "1 ms"),
        (0.000999999, "999.999 us"),
        (math.inf, "never"),
        (math.nan, "never"),
    ],
)
def test_format_seconds(seconds, text):
    """Seconds are shown in the unit that leaves 1 or more after rounding; what never ends is never."""
    assert format_seconds(seconds) == text


@settings(max_examples=150)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_find_cycle(case):
    """What is found is a cycle of edges, without repeats, and one is found whenever there is one."""
    n, edges = case
    before = [[b for a, b in edges if a == i] for i in range(n)]
    cycle = find_cycle(before)
    for here, there in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        assert there in before[here]
    assert len(set(cycle)) == len(cycle)
    rows = np.array(edges, int).reshape(-1, 2).T
    parts = connected_components(coo_array((np.ones(len(edges)), tuple(rows)), shape=(n, n)), connection="strong")[0]
    assert bool(cycle) == (parts < n or any(a == b for a, b in edges))


@pytest.mark.parametrize(
    ("before", "cycle"),
    [([], []), ([[]], []), ([[0]], [0]), ([[], [0], [1]], []), ([[2], [0], [1]], [0, 2, 1]), ([[1], [2], [1]], [1, 2])],
)
def test_find_cycle_by_hand(before, cycle):
    """No cycle, a loop, one long cycle, and one that a tail leads into."""
    assert find_cycle(before) == cycle


def test_find_cycle_is_not_recursive():
    """A path of 50,000 is no trouble."""
    assert find_cycle([[i + 1] if i < 50_000 else [] for i in range(50_001)]) == []


# Fields -------------------------------------------------------------------------------------------------------------


def fields(place="pools[0]", **table):
    """A table of a file."""
    return Fields(table, "box.toml", place)


def fault(read, table, place="pools[0]"):
    """The message of what is wrong when `read` reads a table."""
    with pytest.raises(FileError) as caught:
        read(Fields(table, "box.toml", place))
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        ([1], "a list"),
        ("text", "'text'"),
        (3, "3"),
        (2.5, "2.5"),
        ("x" * 100, "'" + "x" * 56 + "..."),
    ],
)
def test_a_table_is_expected(given, found):
    """What is no table is a fault that says what was found instead, in the words of the format."""
    assert describe(given) == found
    assert fault(lambda f: f, given) == f"box.toml: pools[0]: expected a table of fields, found {found}"


def test_faults_without_a_place():
    """At the top of a file the place is the field alone, and nothing where there is no field."""
    assert (
        fault(lambda f: f.number("rate"), {"rate": -1}, "")
        == "box.toml: rate: -1 is out of range; 0 to 1e+30 is allowed"
    )
    assert fault(lambda f: f.number("rate"), {}, "") == "box.toml: the field 'rate' is missing"


FAULTS = {
    "missing": (lambda f: f.take("x"), {}, "pools[0]: the field 'x' is missing"),
    "misspelt": (lambda f: f.take("size_s"), {"size": 4}, "pools[0]: the field 'size_s' is missing; there is 'size'"),
    "text": (lambda f: f.text("x"), {"x": 5}, "pools[0].x: expected text, found 5"),
    "no text": (lambda f: f.text("x"), {"x": None}, "pools[0].x: expected text, found null"),
    "long": (lambda f: f.text("x", max_length=3), {"x": "four"}, "pools[0].x: text of 4 characters; at most 3 are"),
    "unprintable": (lambda f: f.text("x"), {"x": "a\nb"}, "pools[0].x: text with unprintable characters"),
    "surrogate": (lambda f: f.text("x"), {"x": "\ud800"}, "pools[0].x: text with unprintable characters or lone"),
    "choice": (lambda f: f.choice("x", ("a", "b")), {"x": "c"}, "pools[0].x: 'c' is not allowed; one of a, b"),
    "number": (lambda f: f.number("x"), {"x": "1"}, "pools[0].x: expected a number, found '1'"),
    "bool": (lambda f: f.number("x"), {"x": True}, "pools[0].x: expected a number, found true"),
    "nan": (lambda f: f.number("x"), {"x": math.nan}, "pools[0].x: nan is out of range; 0 to 1e+30 is allowed"),
    "nan for inf": (lambda f: f.number("x", infinite=True), {"x": math.nan}, "pools[0].x: nan is out of range"),
    "inf": (lambda f: f.number("x"), {"x": math.inf}, "pools[0].x: inf is out of range"),
    "minus inf": (lambda f: f.number("x", infinite=True), {"x": -math.inf}, "pools[0].x: -inf is out of range"),
    "null": (lambda f: f.number("x"), {"x": None}, "pools[0].x: expected a number, found null"),
    "high": (lambda f: f.number("x", high=2), {"x": 2.5}, "pools[0].x: 2.5 is out of range; 0 to 2 is allowed"),
    "huge": (lambda f: f.number("x"), {"x": 10**400}, "pools[0].x: a number of 1329 bits; 0 to 1e+30 is allowed"),
    "fraction": (lambda f: f.integer("x"), {"x": 1.5}, "pools[0].x: expected a whole number, found 1.5"),
    "negative": (lambda f: f.integer("x"), {"x": -1}, "pools[0].x: -1 is out of range"),
    "beyond": (lambda f: f.integer("x"), {"x": MAX_BYTES + 1}, f"pools[0].x: {MAX_BYTES + 1} is out of range"),
    "integer": (lambda f: f.integer("x"), {"x": False}, "pools[0].x: expected a number, found false"),
    "size": (lambda f: f.size("x"), {"x": "4 lumps"}, "pools[0].x: '4 lumps' is no size"),
    "size below 0": (lambda f: f.size("x"), {"x": -4}, "pools[0].x: -4 is out of range"),
    "flag": (lambda f: f.flag("x", True), {"x": 2}, "pools[0].x: expected true or false, found 2"),
    "flag text": (lambda f: f.flag("x", True), {"x": "true"}, "pools[0].x: expected true or false, found 'true'"),
    "list": (lambda f: f.items("x"), {"x": "abc"}, "pools[0].x: expected a list, found 'abc'"),
    "no list": (lambda f: f.items("x"), {"x": {}}, "pools[0].x: expected a list, found a table"),
    "many": (lambda f: f.items("x", most=1), {"x": [1, 2]}, "pools[0].x: 2 entries; at most 1 are allowed"),
    "texts": (lambda f: f.texts("x"), {"x": ["a", 1]}, "pools[0].x[1]: expected text, found 1"),
    "unknown": (lambda f: (f.has("b"), f.has("a"), f.done()), {"a": 1, "z": 2},
                "pools[0]: unknown field 'z'; the fields are a, b"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_name_the_place(case):
    """A wrong field is a fault that names file, table, field, what was found, and what is allowed."""
    read, table, message = FAULTS[case]
    assert fault(read, table).startswith(f"box.toml: {message}")


def test_what_passes():
    """Good values come out as they are meant, whole floats as integers, null and inf as infinite where allowed."""
    table = fields(t="ok", n=3, w=4.0, s="2KiB", b=17, f=0, g=True, items=(1, 2), none=None, inf=math.inf, names=["a"])
    assert table.text("t", max_length=2) == "ok"
    assert table.choice("t", ("ok",)) == "ok"
    assert table.number("n") == 3.0
    assert type(table.number("n")) is float
    assert table.integer("w") == 4
    assert type(table.integer("w")) is int
    assert (table.size("s"), table.size("b")) == (2048, 17)
    assert (table.flag("f", True), table.flag("g", False)) == (False, True)
    assert table.items("items", most=2) == (1, 2)
    assert table.texts("names") == ("a",)
    assert table.number("none", infinite=True) == table.number("inf", infinite=True) == math.inf
    table.done()


def test_values_of_a_list_are_checked_alike():
    """A value that is in no field of its own is checked as a field is, and is finite unless infinity is allowed."""
    table = fields()
    assert table.check_number(None, "x[0]", infinite=True) == math.inf
    assert table.check_number(2, "x[0]") == 2.0
    for value in (None, math.inf):
        with pytest.raises(FileError, match=r"^box\.toml: pools\[0\]\.x\[0\]: "):
            table.check_number(value, "x[0]")


def test_defaults_come_back_unchecked():
    """A field that is absent is its default, whatever that is, and a field with null is not absent."""
    table = fields(x=None)
    assert table.number("y", -5.0) == -5.0
    assert table.integer("y", -5) == -5
    assert table.text("y", None) is None
    assert table.items("y", ()) == ()
    assert table.flag("y", True) is True
    with pytest.raises(FileError, match="expected a number, found null"):
        table.number("x", 1.0)


def test_done_takes_any_iterable():
    """Fields that may be ignored can come from a generator; all of them are ignored."""
    fields(a=1, b=2).done(name for name in ["a", "b"])
