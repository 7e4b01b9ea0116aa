"""Machine: pools, devices, channels and routes are checked once; routes go through hosts; rates add up."""

import math
from dataclasses import replace

import pytest

from placewright.checks import MAX_BYTES
from placewright.errors import MachineError, UnknownNameError
from placewright.machine import MAX_CHANNELS, MAX_DEVICES, Channel, Device, Machine, Pool, Route

MIB = 1 << 20


def box(hosts, routes, pools=None, channels=None):
    """A machine of devices d0, d1, ... with those hosts, one pool each unless given, and routes by device numbers."""
    names = [f"d{i}" for i in range(len(hosts))]
    pools = pools or names
    used = dict.fromkeys(c for path in routes.values() for c in path)
    return Machine(
        "box",
        tuple(Device(n, "m", p, None if h is None else names[h]) for n, p, h in zip(names, pools, hosts, strict=True)),
        tuple(Pool(p, MIB) for p in dict.fromkeys(pools)),
        channels or tuple(Channel(c, 1e9, 1e-6) for c in used),
        tuple(Route(names[a], names[b], path) for (a, b), path in routes.items()),
    )


def names(machine, source, target):
    """The channels of a route by name."""
    route = machine.route(source, target)
    return None if route is None else [machine.channels[c].name for c in route]


# Parts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"bytes": -1}, f"pool 'p': bytes is -1; 0 to {MAX_BYTES} is allowed"),
        ({"bytes": MAX_BYTES + 1}, f"bytes is {MAX_BYTES + 1}; 0 to"),
        ({"granule_bytes": 0}, "pool 'p': granule_bytes is 0; 1 to 2**30 is allowed"),
        ({"granule_bytes": (1 << 30) + 1}, "granule_bytes is 1073741825"),
        ({"reserve_bytes": -1}, "pool 'p': reserve_bytes is -1; 0 to its bytes, 100, is allowed"),
        ({"reserve_bytes": 101}, "pool 'p': reserve_bytes is 101; 0 to its bytes, 100, is allowed"),
    ],
)
def test_pools(figures, message):
    """A pool out of range is refused with its name, the field, the value and what is allowed."""
    with pytest.raises(MachineError) as caught:
        Pool("p", **({"bytes": 100} | figures))
    assert message in str(caught.value)


def test_capacity():
    """What can be allocated is the bytes less the reserve, down to nothing."""
    assert Pool("p", 100, reserve_bytes=30).capacity_bytes == 70
    assert Pool("p", 100, reserve_bytes=100).capacity_bytes == 0
    assert Pool("p", MAX_BYTES).capacity_bytes == MAX_BYTES


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"flops_per_s": {"float16": -1.0}}, "device 'd': float16 is -1.0; 0 to 1e30 is allowed"),
        ({"flops_per_s": {"float32": math.nan}}, "device 'd': float32 is nan"),
        ({"bytes_per_s": math.inf}, "device 'd': bytes_per_s is inf; 0 to 1e30 is allowed"),
        ({"launch_s": -1e-9}, "device 'd': launch_s is -1e-09; 0 to 1e6 is allowed"),
        ({"launch_s": math.nan}, "device 'd': launch_s is nan"),
        ({"efficiency": {"matmul": 0.0}}, "device 'd': efficiency of 'matmul' is 0.0; above 0, at most 1"),
        ({"efficiency": {"matmul": 1.1}}, "device 'd': efficiency of 'matmul' is 1.1"),
        ({"efficiency": {"memory": math.nan}}, "device 'd': efficiency of 'memory' is nan"),
    ],
)
def test_devices(figures, message):
    """A device out of range is refused with its name, the figure, the value and what is allowed."""
    with pytest.raises(MachineError) as caught:
        Device("d", "m", "p", **figures)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "latency", "message"),
    [
        (0.0, 0.0, "channel 'c': bytes_per_s is 0.0; above 0, at most 1e30"),
        (math.inf, 0.0, "channel 'c': bytes_per_s is inf"),
        (math.nan, 0.0, "channel 'c': bytes_per_s is nan"),
        (1.0, -1.0, "channel 'c': latency_s is -1.0; 0 to 1e6 is allowed"),
        (1.0, math.nan, "channel 'c': latency_s is nan"),
    ],
)
def test_channels(rate, latency, message):
    """A channel out of range is refused with its name, the figure, the value and what is allowed."""
    with pytest.raises(MachineError) as caught:
        Channel("c", rate, latency)
    assert message in str(caught.value)


def test_limits_are_within():
    """The ends of the ranges are allowed."""
    assert Device("d", "m", "p", efficiency={"matmul": 1.0}, bytes_per_s=1e30, launch_s=1e6).efficiency["matmul"] == 1
    assert Channel("c", 1e30, 1e6).latency_s == 1e6
    assert Pool("p", 100, 1 << 30, 100).granule_bytes == 1 << 30


def test_is_host(machine):
    """A host is its own host."""
    assert [device.is_host for device in machine.devices] == [True, False, False]


# Whole machines -----------------------------------------------------------------------------------------------------

WRONG = {
    "no devices": ({"devices": ()}, f"machine 'small' has 0 devices; 1 to {MAX_DEVICES} are allowed"),
    "two devices of one name": (
        {"devices": (Device("a", "m", "dram"), Device("b", "m", "dram"), Device("a", "m", "hbm0"))},
        "machine 'small': two devices are named 'a'",
    ),
    "two pools of one name": (
        {"pools": (Pool("dram", 1), Pool("hbm0", 1), Pool("hbm1", 1), Pool("hbm0", 2))},
        "machine 'small': two pools are named 'hbm0'",
    ),
    "two channels of one name": (
        {"channels": (Channel("up0", 1.0), Channel("up0", 1.0))},
        "machine 'small': two channels are named 'up0'",
    ),
    "no such pool": (
        {"devices": (Device("a", "m", "vram"),), "routes": ()},
        "device 'a' allocates from pool 'vram', which does not exist",
    ),
    "no such host": (
        {"devices": (Device("a", "m", "dram", "cpu:0"),), "routes": ()},
        "device 'a' has host 'cpu:0', which does not exist",
    ),
    "a route from no device": (
        {"routes": (Route("gpu:9", "cpu:0", ("up0",)),)},
        "route 'gpu:9' to 'cpu:0': one of the devices does not exist",
    ),
    "a route to itself": (
        {"routes": (Route("cpu:0", "cpu:0", ("up0",)),)},
        "route 'cpu:0' to 'cpu:0': given twice, or from a device to itself",
    ),
    "a route twice": (
        {"routes": (Route("gpu:0", "cpu:0", ("up0",)), Route("gpu:0", "cpu:0", ("up1",)))},
        "route 'gpu:0' to 'cpu:0': given twice",
    ),
    "a route of nothing": (
        {"routes": (Route("gpu:0", "cpu:0", ()),)},
        "route 'gpu:0' to 'cpu:0': needs 1 to 64 channels, all of which exist",
    ),
    "a route of 65 channels": (
        {"routes": (Route("gpu:0", "cpu:0", ("up0",) * 65),)},
        "route 'gpu:0' to 'cpu:0': needs 1 to 64 channels",
    ),
    "a route of no channel": (
        {"routes": (Route("gpu:0", "cpu:0", ("up0", "up9")),)},
        "route 'gpu:0' to 'cpu:0': needs 1 to 64 channels, all of which exist",
    ),
    "too many channels": (
        {"channels": tuple(Channel(f"c{k}", 1.0) for k in range(MAX_CHANNELS + 1)), "routes": ()},
        f"machine 'small' has {MAX_CHANNELS + 1} channels; at most {MAX_CHANNELS}",
    ),
    "too many devices": (
        {"devices": tuple(Device(f"d{k}", "m", "dram") for k in range(MAX_DEVICES + 1)), "routes": ()},
        f"machine 'small' has {MAX_DEVICES + 1} devices; 1 to {MAX_DEVICES} are allowed",
    ),
    "too much memory": (
        {"pools": (Pool("dram", MAX_BYTES), Pool("hbm0", 1), Pool("hbm1", 0))},
        f"machine 'small': its pools hold more than {MAX_BYTES} bytes in all",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_machines(machine, case):
    """A machine that breaks a rule is refused, and the message says which thing and which rule."""
    changes, message = WRONG[case]
    with pytest.raises(MachineError) as caught:
        replace(machine, **changes)
    assert str(caught.value).startswith(message)


def test_lists_become_tuples(machine):
    """A machine given as lists is the same machine."""
    lists = Machine("small", list(machine.devices), list(machine.pools), list(machine.channels), list(machine.routes))
    assert lists == machine
    assert isinstance(lists.devices, tuple)


def test_indices(machine):
    """Names to indices, and the pool of each device."""
    assert machine.device_index == {"cpu:0": 0, "gpu:0": 1, "gpu:1": 2}
    assert machine.channel_index["down0"] == 1
    assert machine.pool_of == (0, 1, 2)
    assert machine.device("gpu:1") == 2


def test_unknown_device(machine):
    """A device that there is none of is an error that lists the machine's."""
    with pytest.raises(UnknownNameError) as caught:
        machine.device("gpu:2")
    assert "Known: cpu:0, gpu:0, gpu:1. They are those of machine 'small'." in str(caught.value)


# Routes and rates ---------------------------------------------------------------------------------------------------


def test_given_routes(machine):
    """A route that is given is as given, each direction by itself."""
    assert names(machine, 1, 0) == ["up0"]
    assert names(machine, 0, 1) == ["down0"]


def test_staged_through_the_host(machine):
    """Two cards of one host go up one link and down the other: latencies add, the slowest channel counts."""
    assert names(machine, 1, 2) == ["up0", "down1"]
    assert names(machine, 2, 1) == ["up1", "down0"]
    assert machine.rates(1, 2) == (pytest.approx(30e-6), 5e9)
    assert machine.rates(2, 1) == (pytest.approx(30e-6), 8e9)


def test_rates_of_one_link(machine):
    """One link counts as it is."""
    assert machine.rates(0, 2) == (10e-6, 5e9)


def test_staged_through_two_hosts():
    """Device, its host, the other's host, device: three hops, in that order."""
    routes = {(2, 0): ("a",), (0, 1): ("b",), (1, 3): ("c",), (3, 1): ("d",), (1, 0): ("e",)}
    machine = box([0, 1, 0, 1], routes)
    assert names(machine, 2, 3) == ["a", "b", "c"]
    assert names(machine, 2, 1) == ["a", "b"]
    assert names(machine, 0, 3) == ["b", "c"]
    assert names(machine, 3, 0) == ["d", "e"]
    assert names(machine, 3, 2) is None  # nothing leads from d0 to d2


def test_hosts_of_one_pool_are_no_hop():
    """Two hosts on one memory need no channel between them."""
    routes = {(2, 0): ("a",), (1, 3): ("b",)}
    assert names(box([0, 1, 0, 1], routes, ["dram", "dram", "x", "y"]), 2, 3) == ["a", "b"]
    assert names(box([0, 1, 0, 1], routes), 2, 3) is None


def test_a_direct_route_beats_the_hosts():
    """What is given is never staged."""
    routes = {(1, 0): ("a",), (0, 2): ("b",), (1, 2): ("direct",)}
    assert names(box([0, 0, 0], routes), 1, 2) == ["direct"]


def test_no_host_no_way():
    """Without a host, and without a route, there is no way and there are no rates."""
    machine = box([None, None], {(0, 1): ("a",)})
    assert names(machine, 0, 1) == ["a"]
    assert machine.route(1, 0) is None
    assert machine.rates(1, 0) is None


def test_staging_goes_over_given_routes_only():
    """A hop of a staged way is not itself staged: a host's host does not help."""
    routes = {(2, 1): ("a",), (1, 0): ("b",), (0, 3): ("c",)}
    assert names(box([0, 0, 1, 0], routes), 2, 3) == ["a", "b", "c"]
    assert names(box([0, 0, 1, 3], routes), 2, 3) is None


def test_one_pool_needs_no_channel():
    """Within a pool nothing is sent: no channels, no latency, endless bandwidth, even where a route is given."""
    machine = box([None, None], {(0, 1): ("a",)}, ["shared", "shared"])
    assert machine.route(0, 1) == machine.route(1, 0) == machine.route(0, 0) == ()
    assert machine.rates(0, 1) == (0.0, math.inf)


def test_a_channel_met_twice():
    """A channel that a route meets k times has 1/k of its rate, and its latency k times."""
    channels = (Channel("bus", 9e9, 2e-6), Channel("nic", 4e9, 1e-6))
    machine = box([None] * 4, {(0, 1): ("bus", "nic", "bus"), (1, 0): ("bus",) * 3}, channels=channels)
    assert machine.rates(0, 1) == (pytest.approx(5e-6), 4e9)
    assert machine.rates(1, 0) == (pytest.approx(6e-6), 3e9)


def test_a_channel_met_twice_by_staging():
    """Two cards on one shared bus cross it twice on their way through the host."""
    channels = (Channel("bus", 8e9, 1e-6),)
    routes = {(1, 0): ("bus",), (0, 1): ("bus",), (2, 0): ("bus",), (0, 2): ("bus",)}
    machine = box([0, 0, 0], routes, channels=channels)
    assert names(machine, 1, 2) == ["bus", "bus"]
    assert machine.rates(1, 2) == (pytest.approx(2e-6), 4e9)


# Memory caps --------------------------------------------------------------------------------------------------------


def test_with_memory(machine):
    """A cap is what can be allocated: the reserve goes, granules and other pools stay, the machine is as before."""
    capped = machine.with_memory({"gpu:0": 5 * MIB, "dram": 7 * MIB})
    assert [pool.capacity_bytes for pool in capped.pools] == [7 * MIB, 5 * MIB, 16 * MIB]
    assert [pool.reserve_bytes for pool in capped.pools] == [0, 0, 0]
    assert [pool.granule_bytes for pool in capped.pools] == [64, 512, 512]
    assert machine.pools[0].capacity_bytes == 60 * MIB
    assert capped.routes == machine.routes


def test_with_memory_of_a_shared_pool():
    """A device names the pool that it shares, and a pool's own name goes before a device's."""
    machine = box([None, None, None], {}, ["shared", "shared", "d0"])
    assert [pool.bytes for pool in machine.with_memory({"d1": 5}).pools] == [5, MIB]
    assert [pool.bytes for pool in machine.with_memory({"d0": 5}).pools] == [MIB, 5]


def test_with_memory_refuses(machine):
    """A cap on nothing that exists, or below 0, is refused; a cap of 0 is a cap."""
    with pytest.raises(UnknownNameError, match="unknown device 'hbm7'"):
        machine.with_memory({"hbm7": 1})
    with pytest.raises(MachineError, match="bytes is -1"):
        machine.with_memory({"gpu:0": -1})
    assert machine.with_memory({"gpu:0": 0}).pools[1].capacity_bytes == 0
