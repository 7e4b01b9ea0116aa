"""Scopes of operations: the user's own paths, whatever they look like, without torch's numbers of calls."""

import sys

import pytest
import torch
from torch import nn

from placewright.capture import capture_step
from placewright.capture.exported import read_exported
from placewright.capture.scopes import clean_scope
from placewright.graph import FORWARD

TRACE = sys.modules["placewright.capture.trace"]  # the package has a function of that name


class Part(nn.Module):
    """A layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.a(x))


class Net(nn.Module):
    """Keys that look like torch's numbers of calls, with and without parameters, beside a part that is called twice."""

    def __init__(self, sign):
        super().__init__()
        self.part, self.first, self.second = Part(), f"conv{sign}1", f"conv{sign}2"
        self.d = nn.ModuleDict({self.first: nn.Linear(4, 4), self.second: nn.Linear(4, 4), "act@1": nn.Tanh()})

    def forward(self, x):
        first, second = self.d[self.first], self.d[self.second]
        return self.d["act@1"](first(second(first(self.part(self.part(x)))))).sum()


@pytest.mark.parametrize("way", ["export", "make_fx", "exported program"])
@pytest.mark.parametrize("optimizer", [None, "sgd"])
def test_scopes_are_the_users_own_paths(way, optimizer, monkeypatch, tmp_path):
    """Each layer has its operations beside its parameters, whose names in a saved program are those of Python."""
    sign = "_" if way == "exported program" else "@"
    net, x = Net(sign), torch.zeros(2, 4)
    if way == "exported program":
        torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
        found = read_exported(tmp_path / "net.pt2", optimizer=optimizer)
    else:
        if way == "make_fx":
            monkeypatch.setattr(TRACE, "_exported", refused)
        found = capture_step(net, x, optimizer=optimizer)
    assert found.method == way
    graph = found.graph
    expected = {"part.a": 4, f"d.conv{sign}1": 2, f"d.conv{sign}2": 1, "d.act@1": 1, "": 1}
    computed = [op for op, kind in enumerate(graph.kinds) if kind in ("addmm", "tanh", "sum")]
    forward = [graph.scopes[op] for op in computed if graph.phase[op] == FORWARD]
    assert {scope: forward.count(scope) for scope in forward} == expected
    assert set(graph.scopes) <= {*expected, "part"}
    for name in (f"d.conv{sign}1.weight", f"d.conv{sign}2.weight"):
        assert graph.scopes[graph.op(name)] == name.removesuffix(".weight")


def refused(*_):
    """Stands for a way that cannot take a model."""
    raise RuntimeError("not this one")


@pytest.mark.parametrize(
    ("path", "known", "scope"),
    [
        ("model", {"", "a"}, ""),
        ("model.a", {"", "a"}, "a"),
        ("model.a@3", {"", "a"}, "a"),
        ("model.a@1.b@2", {"", "a", "a.b"}, "a.b"),
        ("model.a@1", {"", "a@1"}, "a@1"),
        ("model.a@1@2", {"", "a@1"}, "a@1"),
        ("model.a@1.b@1", {"", "a@1", "a@1.b"}, "a@1.b"),
        ("model.model@1", {"", "model"}, "model"),
        ("model.gone", {""}, "gone"),
    ],
)
def test_numbers_of_calls_are_dropped(path, known, scope):
    """From whatever part of a path is not a module's own name."""
    assert clean_scope(path, known) == scope
