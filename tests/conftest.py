"""Named tiny instances that many tests share. All are immutable, so one of each serves the whole run."""

import pytest

from placewright.machine import Channel, Device, Machine, Pool, Route
from placewright.operations import Operation, Tensor, build_graph

MIB = 1 << 20


@pytest.fixture(scope="session")
def chain3():
    """a, then b, then c, each with 1000 bytes for the next."""
    return build_graph(
        "chain3",
        [
            Operation("a", "matmul", flops=7e6, outputs=[Tensor(1000)]),
            Operation("b", "relu", bytes_read=7500, bytes_written=7500, inputs=["a"], outputs=[Tensor(1000)]),
            Operation("c", "matmul", flops=7e6, inputs=["b"], outputs=[Tensor(1000, output=True)]),
        ],
    )


@pytest.fixture(scope="session")
def diamond4():
    """a feeds b and c, which feed d; the arms have scopes of their own."""
    return build_graph(
        "diamond4",
        [
            Operation("a", scope="net", outputs=[Tensor(100)]),
            Operation("b", scope="net.left", inputs=["a"], outputs=[Tensor(200)]),
            Operation("c", scope="net.right", inputs=["a"], outputs=[Tensor(300)]),
            Operation("d", scope="head", inputs=["c", "b"], outputs=[Tensor(4, output=True)]),
        ],
    )


@pytest.fixture(scope="session")
def fork8():
    """A source, six arms that read its one tensor, and a join of all six."""
    arms = [f"arm{k}" for k in range(6)]
    return build_graph(
        "fork8",
        [
            Operation("source", outputs=[Tensor(600)]),
            *(Operation(arm, scope=f"arms.{arm}", inputs=["source"], outputs=[Tensor(100)]) for arm in arms),
            Operation("join", inputs=arms, outputs=[Tensor(4, output=True)]),
        ],
    )


@pytest.fixture(scope="session")
def train6():
    """A training step of one parameter: x and w into mm, a view of its output, the update of w, and its store."""
    return build_graph(
        "train6",
        [
            Operation("x", phase="input", outputs=[Tensor(1000)]),
            Operation("w", phase="parameter", outputs=[Tensor(4000)]),
            Operation("mm", "matmul", inputs=["x", "w"], outputs=[Tensor(2000)]),
            Operation("view", "view", inputs=["mm"], outputs=[Tensor(2000, ("mm", 0))]),
            Operation("sgd", "sgd", "update", inputs=["view", "w"], outputs=[Tensor(4000, ("w", 0), in_place=True)]),
            Operation("keep", "store", "store", inputs=["sgd"]),
        ],
    )


@pytest.fixture(scope="session")
def machine():
    """A host and two cards. The cards reach each other through the host, and every figure is round."""
    card = {
        "model": "card",
        "host": "cpu:0",
        "flops_per_s": {"float32": 1e12, "float16": 4e12},
        "bytes_per_s": 1e11,
        "launch_s": 8e-6,
        "asynchronous": True,
    }
    return Machine(
        "small",
        (
            Device("cpu:0", "host", "dram", "cpu:0", {"float32": 1e11}, 1e10, 2e-6),
            Device("gpu:0", pool="hbm0", **card),
            Device("gpu:1", pool="hbm1", **card),
        ),
        (Pool("dram", 64 * MIB, 64, 4 * MIB), Pool("hbm0", 16 * MIB), Pool("hbm1", 16 * MIB)),
        (
            Channel("up0", 8e9, 20e-6),
            Channel("down0", 10e9, 10e-6),
            Channel("up1", 8e9, 20e-6),
            Channel("down1", 5e9, 10e-6),
        ),
        (
            Route("gpu:0", "cpu:0", ("up0",)),
            Route("cpu:0", "gpu:0", ("down0",)),
            Route("gpu:1", "cpu:0", ("up1",)),
            Route("cpu:0", "gpu:1", ("down1",)),
        ),
    )
