"""Machine files: presets read and mean what they say, the normal form is faithful, bad files say where."""

import itertools
import os
import random
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from placewright.costs import roofline
from placewright.errors import FileError, MachineError, UnknownNameError
from placewright.machine import MAX_CHANNELS, MAX_DEVICES, Channel, Device, Machine, Pool, Route
from placewright.machine_files import (
    CLASSES,
    MAX_FILE_BYTES,
    load_machine,
    machine_toml,
    preset,
    presets,
    read_machine,
)

HEAD = 'schema = "placewright.machine/1"\nname = "box"\n'
CPU = """
[[devices]]
name = "cpu:0"
host = "cpu:0"
flops_per_s = {float32 = 1e12}
bytes_per_s = 50e9
launch_s = 4e-6
asynchronous = false
memory = {bytes = "16GiB", granule_bytes = 64, reserve_bytes = "1GiB"}
"""
MODEL = """
[models.card]
flops_per_s = {float32 = 10e12, float16 = 40e12}
bytes_per_s = 500e9
launch_s = 9e-6
asynchronous = true
memory = {bytes = "12GiB"}
"""
GPUS = """
[[devices]]
names = ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
model = "card"
host = "cpu:0"
"""
BOX = HEAD + CPU + MODEL + GPUS
LINK = '[[links]]\nbetween = [["cpu:0", "gpu:0"], ["cpu:0", "gpu:1"]]\nbytes_per_s = 10e9\nlatency_s = 2e-5\n'


@pytest.fixture
def read(tmp_path):
    """Read a machine from text or bytes, through a file."""
    path = tmp_path / "box.toml"

    def read_it(text):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_machine(path)

    return read_it


def rates(machine, source, target):
    return machine.rates(machine.device(source), machine.device(target))


# Presets


@pytest.mark.parametrize("name", presets())
def test_a_preset_survives_its_normal_form(name, read):
    machine = preset(name)
    assert machine.name == name
    text = machine_toml(machine)
    assert read(text) == machine
    assert machine_toml(read(text)) == text


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_whole(name):
    machine = preset(name)
    cpus = [device for device in machine.devices if device.name.startswith("cpu:")]
    gpus = [device for device in machine.devices if device.name.startswith("gpu:")]
    assert [device.name for device in cpus] == [f"cpu:{k}" for k in range(len(cpus))]
    assert [device.name for device in gpus] == [f"gpu:{k}" for k in range(len(gpus))]
    assert len(cpus) + len(gpus) == len(machine.devices)
    assert all(device.is_host for device in cpus)
    for i, device in enumerate(machine.devices):
        assert device.flops_per_s["float32"] > 0
        assert device.bytes_per_s > 0
        assert 1e-6 <= device.launch_s <= 1e-4
        assert device.asynchronous == device.name.startswith("gpu:")
        pool = machine.pools[machine.pool_of[i]]
        assert pool.capacity_bytes > 0
        assert pool.reserve_bytes > 0
        assert pool.granule_bytes == (
            64 if all(d.name[0] == "c" for d in machine.devices if d.pool == pool.name) else 512
        )
        host = machine.device(device.host)
        for j in {host, *range(len(machine.devices))} - {i}:
            latency, rate = machine.rates(i, j)
            shared = machine.pool_of[i] == machine.pool_of[j]
            assert (latency, rate) == (0, float("inf")) if shared else 1e-6 < latency < 1e-3 and 1e9 < rate < 1e12


def test_models_of_one_name_have_the_same_figures_everywhere():
    seen = {}
    for name in presets():
        machine = preset(name)
        for i, device in enumerate(machine.devices):
            figures = replace(device, name="", pool="", host=None)
            assert seen.setdefault(device.model, figures) == figures, (name, device.name)
            if device.name.startswith("gpu:"):
                memory = replace(machine.pools[machine.pool_of[i]], name="")
                assert seen.setdefault((device.model, "memory"), memory) == memory, (name, device.name)


@pytest.mark.parametrize("name", presets())
def test_every_table_with_figures_stands_below_its_source(name):
    lines = files("placewright").joinpath("machines", f"{name}.toml").read_text().splitlines()
    last = ""
    for above, line in itertools.pairwise(lines):
        if line.startswith("["):
            one_of_several = line in ("[[switches]]", "[[devices]]", last)
            assert above.startswith("# ") or one_of_several or last == "[[devices]]", line
            last = line


def test_a_pair_of_k40_goes_through_the_host_at_the_rate_of_one_link():
    machine = preset("k40x4")
    assert rates(machine, "cpu:0", "gpu:1") == (30e-6, 10.04e9)
    assert rates(machine, "gpu:0", "gpu:1") == (60e-6, 10.04e9)  # up one link and down another: none is met twice
    names = [machine.channels[c].name for c in machine.route(machine.device("gpu:0"), machine.device("gpu:1"))]
    assert names == ["gpu:0>cpu:0", "cpu:0>gpu:1"]


def test_a_bus_that_is_not_duplex_is_met_twice_and_halves(read):
    text = BOX + '[[links]]\nbetween = [["cpu:0", "gpu:0"]]\nbytes_per_s = 8e9\nduplex = false\n'
    text += '[[channels]]\nname = "bus"\nbytes_per_s = 10e9\nlatency_s = 1e-5\n'
    for k in (1, 2):
        text += f'[[routes]]\nsource = "gpu:{k}"\ntarget = "cpu:0"\nchannels = ["bus"]\n'
        text += f'[[routes]]\nsource = "cpu:0"\ntarget = "gpu:{k}"\nchannels = ["bus"]\n'
    machine = read(text)
    assert rates(machine, "gpu:1", "gpu:2") == (2e-5, 5e9)
    assert rates(machine, "gpu:0", "gpu:1") == (1e-5, 8e9)
    assert rates(machine, "gpu:0", "gpu:3") is None


def test_gpus_of_one_board_share_its_uplink_and_cross_its_switch():
    machine = preset("k80x4")
    assert rates(machine, "gpu:0", "gpu:1") == (10e-6, 10.04e9)
    assert rates(machine, "gpu:0", "gpu:2") == (60e-6, 10.04e9)
    up = [set(machine.route(machine.device(f"gpu:{k}"), 0)) for k in range(4)]
    assert len(up[0] & up[1]) == 1
    assert not up[0] & up[2]
    down = [set(machine.route(0, machine.device(f"gpu:{k}"))) for k in range(4)]
    assert len(down[0] & down[1]) == 1
    assert not down[0] & up[0]


def test_nvlink_gives_a_pair_of_v100_two_links_one_or_none():
    machine = preset("v100x8")
    assert rates(machine, "gpu:0", "gpu:3") == (10e-6, 47.9e9)
    assert rates(machine, "gpu:3", "gpu:7") == (10e-6, 24.0e9)
    latency, rate = rates(machine, "gpu:0", "gpu:5")
    assert (latency, rate) == (pytest.approx(43e-6), 12e9)
    for k in range(8):  # six links on every GPU
        linked = [rates(machine, f"gpu:{k}", f"gpu:{j}")[1] for j in range(8) if j != k]
        assert sum({47.9e9: 2, 24.0e9: 1, 12e9: 0}[r] for r in linked) == 6


def test_nvswitch_gives_every_pair_the_full_rate_and_every_gpu_one_channel_each_way():
    machine = preset("a100x8")
    assert {rates(machine, f"gpu:{a}", f"gpu:{b}") for a in range(8) for b in range(8) if a != b} == {(10e-6, 270e9)}
    out = {machine.route(1, target)[0] for target in range(2, 9)}
    assert len(out) == 1


def test_the_measured_h200():
    machine = preset("h200x1")
    assert rates(machine, "cpu:0", "gpu:0") == rates(machine, "gpu:0", "cpu:0") == (21.5e-6, 55e9)
    gpu = machine.devices[machine.device("gpu:0")]
    assert gpu.launch_s == 9.2e-6
    assert gpu.flops_per_s["bfloat16"] * gpu.efficiency["matmul"] == pytest.approx(790e12, rel=0.01)
    assert [pool.bytes for pool in machine.pools] == [128 << 30, 139 << 30]


def test_nodes_share_one_adapter_in_each_direction():
    machine = preset("two-nodes-4gpu")
    latency, rate = rates(machine, "gpu:0", "gpu:7")
    assert (latency, rate) == (pytest.approx(68e-6), 12e9)
    routes = [machine.route(machine.device(f"gpu:{k}"), machine.device(f"gpu:{k + 4}")) for k in range(4)]
    shared = set.intersection(*(set(route) for route in routes))
    assert {machine.channels[c].name for c in shared} == {"cpu:0>ib", "ib>cpu:1"}


def test_devices_of_one_pool_copy_nothing():
    for name in ("cpu2", "apple-m2-max"):
        machine = preset(name)
        assert len(machine.pools) == 1
        assert not machine.channels
        assert machine.rates(0, 1) == (0, float("inf"))


# The format


def test_links_give_two_readable_channels_each(read):
    machine = read(BOX + LINK + "bytes_per_s_back = 5e9\n")
    assert [c.name for c in machine.channels] == ["cpu:0>gpu:0", "gpu:0>cpu:0", "cpu:0>gpu:1", "gpu:1>cpu:0"]
    assert rates(machine, "cpu:0", "gpu:0") == (2e-5, 10e9)
    assert rates(machine, "gpu:1", "cpu:0") == (2e-5, 5e9)


def test_a_port_of_a_switch_may_be_shared(read):
    text = '[[switches]]\nname = "nic"\nmembers = [["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]]\nbytes_per_s = 12e9\n'
    machine = read(BOX + text)
    names = [c.name for c in machine.channels]
    assert names == ["gpu:0 and 1 more>nic", "gpu:2 and 1 more>nic", "nic>gpu:0 and 1 more", "nic>gpu:2 and 1 more"]
    assert machine.route(1, 3) == machine.route(2, 4) == (0, 3)
    assert rates(machine, "gpu:0", "gpu:1") is None  # of one port: not this switch's business


def test_a_model_gives_every_device_a_pool_of_its_own(read):
    machine = read(BOX)
    assert [pool.name for pool in machine.pools] == ["cpu:0", "gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert machine.pools[1] == Pool("gpu:0", 12 << 30, 512, 0)
    assert {device.model for device in machine.devices[1:]} == {"card"}
    assert machine.devices[0].model == "cpu:0"  # figures of its own: named after itself


def test_the_byte_order_mark_and_carriage_returns_of_other_editors_are_read(read):
    assert read(b"\xef\xbb\xbf" + BOX.replace("\n", "\r\n").encode()) == read(BOX)


def test_the_examples_of_the_documentation_are_read(read):
    page = (Path(__file__).parent.parent / "docs" / "machines.md").read_text()
    desk, switches = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert rates(read(desk), "gpu:0", "gpu:1") == (43e-6, 12.5e9)
    made = [read(BOX + CPU.replace("cpu:0", "cpu:1") + part) for part in switches.split("\n\n")]
    assert [len(machine.channels) for machine in made] == [8, 6, 4, 4]
    assert [len(machine.routes) for machine in made] == [12, 4, 2, 8]
    assert all(name in page for name in presets())


def test_classes_are_those_of_the_cost_model():
    assert CLASSES == roofline.CLASSES


def test_any_machine_survives_its_normal_form_or_is_refused(read):
    pools = (Pool('a "quoted" \\ name', 1 << 40, 1, 5), Pool("é>\u4e2d", 0))
    devices = tuple(
        Device(
            f"d{k}", "m.odel", pools[k % 2].name, None if k % 3 else "d1", {"int8": 1e-300 * k}, 0.1 + k, 1 / (k + 3)
        )
        for k in range(5)
    )
    channels = (Channel("x", 1e30, 1e6), Channel("a" * 300, 5e-324))
    machine = Machine("né", devices, pools, channels, (Route("d1", "d0", ("x", "a" * 300, "x")),), "x" * 1000)
    assert read(machine_toml(machine)) == machine
    for name in ("", "\n", "a" * 101, "\ud800", " "):
        with pytest.raises(MachineError, match="cannot be written"):
            machine_toml(replace(machine, name=name))
    strange = replace(devices[0], flops_per_s={"fp32": 1.0})
    with pytest.raises(MachineError, match="fp32"):
        machine_toml(replace(machine, devices=(strange, *devices[1:])))


def test_a_large_switch_survives_its_normal_form(read):
    names = [f"gpu:{k}" for k in range(120)]
    members = ", ".join(f'"{name}"' for name in names)
    text = HEAD + MODEL + f'[[devices]]\nnames = [{members}]\nmodel = "card"\n'
    text += f'[[switches]]\nname = "s"\nmembers = [{members}]\nbytes_per_s = 1e9\n'
    machine = read(text)
    assert len(machine.routes) == 120 * 119
    assert read(machine_toml(machine)) == machine


# Names and paths


def test_a_name_is_a_preset_or_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k40x4").write_text("a file of a preset's name")
    assert load_machine("k40x4") == preset("k40x4")
    (tmp_path / "plain").write_text(BOX)
    assert load_machine("plain").name == "box"
    assert load_machine(tmp_path / "plain").name == "box"
    with pytest.raises(FileError, match=r"gone\.toml: cannot be read"):
        load_machine("gone.toml")
    with pytest.raises(UnknownNameError, match=r"Did you mean k40x.*Known: a100x8,.*TOML file works too"):
        load_machine("k40x3")
    for name in ("../machines/k40x4", "", "k40x4.tom", "a\0b", "x" * 10_000):
        with pytest.raises(UnknownNameError):
            load_machine(name)
    with pytest.raises(UnknownNameError, match="unknown preset"):
        preset("../machines/k40x4")
    assert presets() == tuple(sorted(presets()))


def test_what_is_not_a_readable_file_is_refused_without_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    for path in (
        tmp_path,
        tmp_path / "pipe.toml",
        tmp_path / "large.toml",
        "/dev/zero",
        tmp_path / "none",
        "a\0b.toml",
    ):
        with pytest.raises(FileError) as caught:
            read_machine(path)
        assert str(path) in str(caught.value)


MANY = ", ".join(f'"g{k}"' for k in range(MAX_DEVICES))
DEVICE = '[[devices]]\nname = "x"\nmodel = "card"\n'
BAD = {  # what is wrong: the file, and what its message has to say of place and fault
    "empty file": ("", "schema"),
    "schema of a later version": (BOX.replace("machine/1", "machine/2"), "schema.*machine/1"),
    "no name": (BOX.replace('name = "box"', ""), "'name' is missing"),
    "name is a number": (BOX.replace('"box"', "5"), "name: expected text, found 5"),
    "name is a huge number": (BOX.replace('"box"', "0x" + "f" * 190), "name: expected text"),
    "unprintable name": (BOX.replace('"box"', '"a\\u0007"'), "name: .* is no name"),
    "unknown field at the top": ("colour = 1\n" + BOX, "unknown field 'colour'"),
    "unknown field of a model": (
        BOX.replace("launch_s = 9e-6", "launch_s = 9e-6\nwatts = 3"),
        r"models\.card: .*watts",
    ),
    "unknown field of a device": (BOX + "slot = 1\n", r"devices\[1\]: unknown field 'slot'"),
    "unknown dtype": (BOX.replace("float16", "fp16"), r"models\.card\.flops_per_s: unknown field 'fp16'"),
    "unknown class": (
        BOX.replace("asynchronous = true", "asynchronous = true\nefficiency = {gemm = 1}"),
        "efficiency: .*gemm",
    ),
    "efficiency above 1": (
        BOX.replace("asynchronous = true", "asynchronous = true\nefficiency = {matmul = 2}"),
        r"models\.card: .*'matmul' is 2",
    ),
    "negative rate": (BOX.replace("500e9", "-1.0"), r"models\.card\.bytes_per_s: -1.0 is out of range"),
    "rate that is not a number": (BOX.replace("500e9", "nan"), r"models\.card\.bytes_per_s: nan"),
    "infinite rate": (BOX.replace("40e12", "inf"), r"models\.card\.flops_per_s\.float16: inf"),
    "rate as text": (BOX.replace("500e9", '"500"'), r"models\.card\.bytes_per_s: expected a number"),
    "rate as a date": (BOX.replace("500e9", "1979-05-27"), r"models\.card\.bytes_per_s: expected a number"),
    "no launch": (BOX.replace("launch_s = 9e-6", ""), r"models\.card: .*'launch_s' is missing"),
    "not said whether asynchronous": (BOX.replace("asynchronous = true", ""), r"models\.card: .*'asynchronous'"),
    "size of no unit": (BOX.replace("12GiB", "12 apples"), r"models\.card\.memory\.bytes: .*is no size"),
    "size too large": (BOX.replace("12GiB", "9999999TiB"), r"models\.card\.memory\.bytes: .*largest"),
    "granule of zero": (BOX.replace('"12GiB"', "1, granule_bytes = 0"), r"models\.card\.memory\.granule_bytes: 0"),
    "reserve above the memory": (
        BOX.replace('"12GiB"', "10, reserve_bytes = 11"),
        r"models\.card: .*reserve_bytes is 11",
    ),
    "model is a list": (HEAD + "[models]\ncard = []\n", r"models\.card: expected a table of fields"),
    "devices is a table": (HEAD + "[devices]\nname = 1\n", "devices: expected a list"),
    "no devices": (HEAD, "0 devices"),
    "device without a name": (BOX + '[[devices]]\nmodel = "card"\n', r"devices\[2\]: needs either name, or names"),
    "device with name and names": (BOX + DEVICE + 'names = ["y"]\n', r"devices\[2\]: needs either name, or names"),
    "two devices of one name": (BOX + DEVICE.replace("x", "gpu:3"), r"devices\[2\]\.name: two .* 'gpu:3'"),
    "a name twice in names": (BOX.replace('"gpu:3"', '"gpu:2"'), r"devices\[1\]\.names: two .* 'gpu:2'"),
    "names are numbers": (BOX.replace('"gpu:3"', "3"), r"devices\[1\]\.names: expected text, found 3"),
    "unknown model": (
        BOX.replace('model = "card"', 'model = "cord"'),
        r"devices\[1\]\.model: 'cord' .*there are: card",
    ),
    "model and figures": (BOX + "launch_s = 1\n", r"devices\[1\]\.launch_s: model 'card' has its own figures"),
    "unknown host": (BOX.replace('host = "cpu:0"\n', 'host = "cpu:7"\n'), r"devices\[0\]\.host: 'cpu:7'.*cpu:0, gpu:0"),
    "unknown pool": (BOX + 'pool = "ram"\n', r"devices\[1\]\.pool: 'ram'"),
    "pool and memory": (HEAD + '[[pools]]\nname = "p"\nbytes = 1\n' + CPU + 'pool = "p"\n', r"devices\[0\]\.memory"),
    "no memory": (HEAD + re.sub("memory.*\n", "", CPU), r"devices\[0\]: has no memory"),
    "own pool of a name that is taken": (
        BOX + '[[pools]]\nname = "gpu:1"\nbytes = 1\n',
        r"devices\[1\]: a pool .*gpu:1",
    ),
    "two pools of one name": (BOX + '[[pools]]\nname = "p"\nbytes = 1\n' * 2, r"pools\[1\]\.name: two pools"),
    "too many devices": (
        BOX + f'[[devices]]\nnames = [{MANY}]\nmodel = "card"\n',
        r"devices\[2\]\.names: more than 256",
    ),
    "far too many names": (
        BOX + f'[[devices]]\nnames = [{MANY * 2}]\nmodel = "card"\n'.replace('""', '","'),
        "at most 256",
    ),
    "link to nowhere": (BOX + LINK.replace("gpu:1", "gpu:9"), r"links\[0\]\.between\[1\]: 'gpu:9'.*cpu:0, gpu:0"),
    "link of three ends": (BOX + LINK.replace('"gpu:1"]', '"gpu:1", "gpu:2"]'), r"links\[0\]\.between\[1\]: .*two"),
    "link given twice": (BOX + LINK.replace("gpu:1", "gpu:0"), r"links\[0\]: two channels are named 'cpu:0>gpu:0'"),
    "link to itself": (BOX + LINK.replace("gpu:1", "cpu:0"), r"links\[0\]: the route from 'cpu:0' to 'cpu:0'"),
    "link of rate zero": (BOX + LINK.replace("10e9", "0"), r"links\[0\]: .*bytes_per_s is 0"),
    "link of negative latency": (BOX + LINK.replace("2e-5", "-1"), r"links\[0\]\.latency_s: -1"),
    "two rates on one channel": (
        BOX + LINK + "duplex = false\nbytes_per_s_back = 1e9\n",
        r"links\[0\]\.bytes_per_s_back",
    ),
    "duplex is text": (BOX + LINK + 'duplex = "no"\n', r"links\[0\]\.duplex: expected true or false"),
    "switch of nobody": (BOX + '[[switches]]\nname = "s"\nmembers = []\nbytes_per_s = 1\n', r"switches\[0\]\.members"),
    "switch with a member twice": (
        BOX + '[[switches]]\nname = "s"\nmembers = ["gpu:0", ["gpu:0"]]\nbytes_per_s = 1\n',
        r"switches\[0\]\.members: a member twice",
    ),
    "switch that connects nothing": (
        BOX + '[[switches]]\nname = "s"\nmembers = ["gpu:0"]\nbytes_per_s = 1\npeer = false\n',
        r"switches\[0\]\.peer",
    ),
    "uplink to nowhere": (
        BOX + '[[switches]]\nname = "s"\nmembers = ["gpu:0"]\nbytes_per_s = 1\nuplink = {to = "x", bytes_per_s = 1}\n',
        r"switches\[0\]\.uplink\.to: 'x'",
    ),
    "uplink to a member": (
        BOX
        + '[[switches]]\nname = "s"\nmembers = ["gpu:0"]\nbytes_per_s = 1\nuplink = {to = "gpu:0", bytes_per_s = 1}\n',
        r"switches\[0\]\.uplink: two channels are named 's>gpu:0'",
    ),
    "channel of a name that is taken": (
        BOX + LINK + '[[channels]]\nname = "cpu:0>gpu:0"\nbytes_per_s = 1\n',
        r"channels\[0\]: two channels",
    ),
    "route over no channel": (
        BOX + '[[routes]]\nsource = "gpu:0"\ntarget = "gpu:1"\nchannels = []\n',
        "route 'gpu:0' to 'gpu:1': needs 1 to 64",
    ),
    "route over an unknown channel": (
        BOX + LINK + '[[routes]]\nsource = "gpu:0"\ntarget = "gpu:1"\nchannels = ["x"]\n',
        r"routes\[0\]\.channels: 'x' .*cpu:0>gpu:0",
    ),
    "route over too many channels": (
        BOX + f'[[routes]]\nsource = "gpu:0"\ntarget = "gpu:1"\nchannels = [{MANY}]\n',
        r"routes\[0\]\.channels: 256 entries; at most 64",
    ),
    "route given twice": (
        BOX + LINK + '[[routes]]\nsource = "cpu:0"\ntarget = "gpu:1"\nchannels = ["cpu:0>gpu:1"]\n',
        r"routes\[0\]: the route from 'cpu:0' to 'gpu:1' is given twice",
    ),
    "too many links": (BOX + "[[links]]\n" * (MAX_CHANNELS + 1), "links: 4097 entries; at most 4096"),
    "too many pairs": (BOX + LINK.replace('["cpu:0", "gpu:0"]', ", ".join(["[]"] * 5000)), r"between: 5001 entries"),
    "pools beyond an exbibyte": (BOX.replace("12GiB", "1048575TiB"), "exbi|more than 1152921504606846976 bytes"),
    "not UTF-8": (BOX.encode() + b"\n# \xff\xfe", "byte [0-9]+: not UTF-8"),
    "not TOML": (BOX + "gpu:0 = 1\n", "line [0-9]+, column 4: not TOML"),
    "a field twice": (BOX + 'model = "card"\n', "line [0-9]+, column [0-9]+: not TOML"),
    "cut off": (BOX[:-4], "not TOML"),
    "nested lists": (HEAD + "devices = " + "[" * 5000, "nested too deeply"),
    "nested tables": (HEAD + "devices = " + "{a = " * 5000, "nested too deeply"),
    "a key of many parts": (BOX + ".".join("a" * 9) + " = 1\n", "near line [0-9]+: a key of more than 5 parts"),
    "a key of many quoted parts": (BOX + ".".join(['"a"'] * 9) + " = 1\n", "a key of more than 5 parts"),
    "a key of many parts behind quotes": (BOX + '\nx = ["""a"""", {' + ".".join("a" * 9) + " = 1}]", "5 parts"),
    "a million parts": (HEAD + ".".join("a" * 1_000_000) + " = 1\n", "a key of more than 5 parts"),
    "many dotted keys": (HEAD + "".join(f"a{k}.b = 1\n" for k in range(30_000)), "more than 20000 dots"),
    "many headers": (HEAD + "".join(f"[a{k}]\n" for k in range(110_000)), "more than 100000 lines"),
    "a long number": (BOX.replace("500e9", "5" * 5000), "more than 200 characters"),
    "a long hexadecimal number": (BOX.replace("500e9", "0x" + "f" * 1_000_000), "more than 200 characters"),
    "a large number": (BOX.replace("500e9", "5" * 199), r"models\.card\.bytes_per_s"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_says_where_and_why(what, read, tmp_path):
    text, message = BAD[what]
    with pytest.raises(FileError, match=message) as caught:
        read(text)
    assert str(caught.value).startswith(str(tmp_path / "box.toml"))
    assert len(str(caught.value)) < 6000


def test_what_looks_like_a_bad_file_inside_text_is_none(read):
    text = BOX.replace("\n\n[[dev", '\ndescription = """a.b.c.d.e.f.g.h \\" [[[[ # ' + "x" * 300 + '"""\n\n[[dev', 1)
    machine = read(text + "# a.b.c.d.e.f.g.h.i.j \" ''' \n# " + "y" * 300)
    assert machine.description.startswith("a.b.c")


# Mutations

VALUES = (
    *("nan", "inf", "-inf", "-1", "0", "1e400", "-0.0", "1e-400", "9" * 30, "9" * 400, "0x" + "f" * 100, "true", "''"),
    *('"x"', '"\\u0000"', '"12GiB"', '"-5"', '"1e9"', "[]", "{}", "[[]]", "[1]", "{a = 1}", "1979-05-27", "07:32:00"),
    *('["cpu:0"]', '["gpu:0", "gpu:0"]', '"gpu:0"', '"cpu:0"', '"é"', '"\\ud800"', "'''", '"""', "1_000", "0b11", "_"),
)
SNIPPETS = (
    *(
        b"[" * 5000,
        b"]" * 5000,
        b"{a=" * 5000,
        b"a." * 5000 + b"b=1\n",
        b"\x00",
        b"\xff\xfe",
        b"\xc3\x28",
        b'"',
        b"'''",
    ),
    *(
        b'"""',
        b"\n[[devices]]\n",
        b"\n[[links]]\n",
        b"\n[models]\n",
        b"\n[models.x]\n",
        b"\n[[switches]]\n",
        b"\r",
        b"=",
    ),
    *(b"\n[[routes]]\nsource='gpu:0'\ntarget='cpu:0'\nchannels=['x']\n", b"#", b"\xef\xbb\xbf", b"\n\n\n", b"9" * 5000),
    b"\n[[devices]]\nnames=[" + b",".join(b"'g%d'" % k for k in range(3000)) + b"]\nmodel='tesla-k40'\n",
    b"\n[[links]]\nbetween=[" + b"['cpu:0','gpu:0']," * 6000 + b"]\nbytes_per_s=1\n",
)


def mutated(rng, texts):
    """One preset's text with one to four faults."""
    data = rng.choice(texts)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        kind = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7))  # mostly values, which get furthest
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + rng.choice(SNIPPETS) + data[at:]
        elif kind == 3:
            other = rng.choice(texts)
            start = rng.randrange(len(other))
            data = data[:at] + other[start : start + rng.randint(1, 400)] + data[at:]
        else:
            lines = data.split(b"\n")
            k = rng.randrange(len(lines))
            if kind == 4:
                lines.insert(rng.randrange(len(lines) + 1), lines[k])
            elif kind == 5:
                del lines[k]
            elif kind == 6:
                i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[i], lines[j] = lines[j], lines[i]
            else:  # another value in the place of one that is there
                old = re.findall(rb'=\s*(.+)|("[^"]*")|(\b[0-9.e+-]+\b)', lines[k])
                spans = [part for found in old for part in found if part]
                if spans:
                    lines[k] = lines[k].replace(rng.choice(spans), rng.choice(VALUES).encode())
            data = b"\n".join(lines)
    return data


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_files_are_read_or_refused_and_nothing_else(count, read):
    rng = random.Random(count)
    texts = [files("placewright").joinpath("machines", f"{name}.toml").read_bytes() for name in presets()]
    texts += [machine_toml(preset(name)).encode() for name in ("k80x4", "v100x8", "apple-m2-max")]
    good = 0
    for _ in range(count):
        data = mutated(rng, texts)
        try:
            machine = read(data)
        except FileError:
            continue
        good += 1
        assert read(machine_toml(machine)) == machine
    assert count // 50 < good < count
