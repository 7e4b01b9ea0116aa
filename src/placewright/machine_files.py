"""Machine files: TOML to a `Machine` and back, and the presets in machines/*.toml.

The format and its shorthands (models, links, switches) are described in docs/machines.md. Reading
checks everything: whatever is wrong is a `FileError` that names file, place and what is allowed.
Limits hold before anything is expanded: 4 MiB of text, 256 devices, 4096 channels.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from placewright.checks import DTYPES, Fields, describe
from placewright.errors import FileError, MachineError, UnknownNameError
from placewright.machine import MAX_CHANNELS, MAX_DEVICES, Channel, Device, Machine, Pool, Route

SCHEMA: Final = "placewright.machine/1"
MAX_FILE_BYTES: Final = 4 << 20
MAX_NAME: Final = 100
MAX_CHANNEL_NAME: Final = 300  # it is made of two names
CLASSES: Final = ("matmul", "convolution", "attention", "recurrent", "memory", "free")
"""The classes that `costs.roofline` knows; a test compares the two."""

_quote = partial(json.dumps, ensure_ascii=False)  # TOML's basic strings have all of JSON's escapes
_FIGURES = ("flops_per_s", "bytes_per_s", "launch_s", "asynchronous", "efficiency", "memory")
_Model = tuple[dict[str, Any], Pool | None]

# What tomllib would turn into time or memory out of proportion to the text is refused before it
# parses: it copies a key of n parts n times, and keeps about a kilobyte for every table named.
_MASK = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?'
    r"|'''(?:[^']++|'(?!''))*+(?:'{3,5})?"
    r'|"(?:[^"\\\n]++|\\[^\n])*+"?'
    r"|'[^'\n]*+'?|#[^\n]*+",
    re.DOTALL,
)
_BULK = (
    (re.compile(r"(?<![^\s=,.\[\]{}])[^\s=,.\[\]{}]{201}"), 1, "a word or number of more than 200 characters"),
    (re.compile(r"(?<![^\s=,.\[\]{}])(?:[^\s=,.\[\]{}]++[ \t]*+\.[ \t]*+){5}"), 1, "a key of more than 5 parts"),
    (re.compile(r"\."), 20_000, "more than 20000 dots outside text"),
    (re.compile(r"^[ \t]*+\[", re.MULTILINE), 100_000, "more than 100000 lines that begin with a bracket"),
)


def read_machine(path: str | os.PathLike[str]) -> Machine:
    """Read the machine that a TOML file describes."""
    return _machine(_read_bytes(Path(path)), path)


@cache
def presets() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    names = (entry.name for entry in files("placewright").joinpath("machines").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def preset(name: str) -> Machine:
    """Read the preset of that name."""
    if name not in presets():
        raise UnknownNameError("preset", str(name)[:MAX_NAME], presets(), "Other machines are TOML files.")
    return _machine(files("placewright").joinpath("machines", f"{name}.toml").read_bytes(), f"{name}.toml")


def load_machine(name_or_path: str | os.PathLike[str]) -> Machine:
    """Read the preset of that name or, where it ends in .toml or exists, the file at that path."""
    name = os.fspath(name_or_path)
    if name in presets():
        return preset(name)
    if name.endswith(".toml") or os.path.exists(name):
        return read_machine(name)
    hint = "The path of a TOML file works too; docs/machines.md describes one."
    raise UnknownNameError("machine", name[:MAX_NAME], presets(), hint)


def machine_toml(machine: Machine) -> str:
    """Write the machine in normal form: models inlined; pools, channels and routes written out.

    Reading the text gives an equal machine. One that no file can hold (a name that is empty or not
    printable, a dtype or class that files do not know, more than 4 MiB of text) is a `MachineError`.
    """
    lines = [f"schema = {_quote(SCHEMA)}", f"name = {_quote(machine.name)}"]
    lines.append(f"description = {_quote(machine.description)}")
    lines += ["", "channels = ["]
    for c in machine.channels:
        rates = f"bytes_per_s = {float(c.bytes_per_s)!r}, latency_s = {float(c.latency_s)!r}"
        lines.append(f"  {{name = {_quote(c.name)}, {rates}}},")
    lines += ["]", "", "routes = ["]
    for r in machine.routes:
        via = ", ".join(_quote(name) for name in r.channels)
        lines.append(f"  {{source = {_quote(r.source)}, target = {_quote(r.target)}, channels = [{via}]}},")
    lines.append("]")
    for p in machine.pools:
        lines += ["", "[[pools]]", f"name = {_quote(p.name)}", f"bytes = {int(p.bytes)}"]
        lines += [f"granule_bytes = {int(p.granule_bytes)}", f"reserve_bytes = {int(p.reserve_bytes)}"]
    for d in machine.devices:
        lines += ["", "[[devices]]", f"name = {_quote(d.name)}", f"model = {_quote(d.model)}"]
        lines += [] if d.host is None else [f"host = {_quote(d.host)}"]
        lines += [f"pool = {_quote(d.pool)}", f"flops_per_s = {_inline(d.flops_per_s)}"]
        lines += [f"bytes_per_s = {float(d.bytes_per_s)!r}", f"launch_s = {float(d.launch_s)!r}"]
        lines += [f"asynchronous = {str(bool(d.asynchronous)).lower()}", f"efficiency = {_inline(d.efficiency)}"]
    text = "\n".join(lines) + "\n"
    try:
        again = _machine(text.encode("utf-8", "surrogatepass"), "its own text")
    except FileError as error:
        raise MachineError(f"machine {machine.name[:MAX_NAME]!r} cannot be written as a file: {error}") from error
    if again != machine:
        raise MachineError(f"machine {machine.name!r} reads back as another one; give plain numbers and text")
    return text


def _inline(table: Mapping[str, float]) -> str:
    """Write an inline table of numbers."""
    return "{" + ", ".join(f"{_quote(name)} = {float(value)!r}" for name, value in table.items()) + "}"


def _read_bytes(path: Path) -> bytes:
    """Read a regular file of at most `MAX_FILE_BYTES`; nothing else is opened."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise FileError(path, "", "is not a regular file; give the path of a TOML file")
        if status.st_size > MAX_FILE_BYTES:
            raise FileError(path, "", f"{status.st_size} bytes; at most {MAX_FILE_BYTES} are allowed")
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(path, "", f"cannot be read: {reason}") from error


def _document(data: bytes, path: object) -> dict[str, Any]:
    """Parse TOML, or say where it stops being that."""
    if len(data) > MAX_FILE_BYTES:
        raise FileError(path, "", f"{len(data)} bytes or more; at most {MAX_FILE_BYTES} are allowed")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(path, f"byte {error.start}", "not UTF-8, which a TOML file has to be") from error
    bare = _MASK.sub("s", text)
    for pattern, most, what in _BULK:
        match = next(itertools.islice(pattern.finditer(bare), most - 1, None), None)
        if match is not None:
            line = bare.count("\n", 0, match.start()) + 1
            raise FileError(path, f"near line {line}", f"{what}; no machine file needs that")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise FileError(path, "", "lists or tables nested too deeply; four levels are enough") from error
    except ValueError as error:  # TOMLDecodeError is one; so is an integer too long to convert
        message = str(error)
        found = re.fullmatch(r"(.*) \(at (.*)\)", message, re.DOTALL)
        place, problem = (found[2], found[1]) if found else ("", message)
        raise FileError(path, place, f"not TOML: {problem[:200]}") from error


def _machine(data: bytes, path: object) -> Machine:
    """Build the machine from the bytes of a file; `path` is for messages."""
    top = Fields(_document(data, path), path, "")
    top.choice("schema", (SCHEMA,))
    name, description = _name(top, "name"), top.text("description", "", max_length=10_000)
    reader = _Reader(top)
    reader.read_models()
    reader.each("pools", reader.pool, most=MAX_DEVICES)
    reader.each("devices", reader.device, most=MAX_DEVICES)
    for fields, host in reader.hosts:
        _among(fields, host, "host", reader.devices)
    reader.each("links", reader.link)
    reader.each("switches", reader.switch)
    reader.each("channels", reader.channel)
    reader.each("routes", reader.route, most=MAX_DEVICES * MAX_DEVICES)
    top.done()
    devices, pools = tuple(reader.devices.values()), tuple(reader.pools.values())
    channels, routes = tuple(reader.channels.values()), tuple(reader.routes.values())
    try:
        return Machine(name, devices, pools, channels, routes, description)
    except MachineError as error:
        raise FileError(path, "", str(error)) from error


def _name(fields: Fields, field: str, value: object = ..., longest: int = MAX_NAME) -> str:
    """Refuse as a name what is not printable text of limited length; the field's own value by default."""
    value = fields.take(field) if value is ... else value
    if not isinstance(value, str):
        raise fields.fault(f"expected text, found {describe(value)}", field)
    if not 1 <= len(value) <= longest or not value.isprintable() or value.isspace():
        raise fields.fault(f"{describe(value)} is no name; 1 to {longest} printable characters are allowed", field)
    return value


def _among(fields: Fields, value: object, field: str, known: Mapping[str, object]) -> str:
    """Refuse what is not the name of something known."""
    if not isinstance(value, str) or value not in known:
        names = ", ".join(list(known)[:40]) or "none"
        raise fields.fault(f"{describe(value)} is not the name of one that is there; there are: {names}", field)
    return value


def _numbers(fields: Fields, field: str, known: tuple[str, ...], default: Any = ...) -> dict[str, float]:
    """Take a table of numbers whose keys must be among `known`."""
    table = Fields(fields.take(field, default), fields.path, f"{fields.place}.{field}")
    values = {name: table.number(name) for name in known if table.has(name)}
    table.done()
    return values


def _memory(fields: Fields, name: str) -> Pool:
    """Take the pool that a table describes."""
    size, reserve = fields.size("bytes"), fields.size("reserve_bytes", 0)
    granule = fields.integer("granule_bytes", 512, low=1, high=1 << 30)
    fields.done()
    return Pool(name, size, granule, reserve)


def _model(fields: Fields) -> _Model:
    """Take the figures of a model: arguments for `Device`, and its memory if it has any of its own."""
    figures: dict[str, Any] = {"flops_per_s": _numbers(fields, "flops_per_s", DTYPES)}
    figures["bytes_per_s"] = fields.number("bytes_per_s")
    figures["launch_s"] = fields.number("launch_s", high=1e6)
    # No default: a GPU that forgot it would be dispatched like a CPU.
    figures["asynchronous"] = fields.flag("asynchronous", fields.take("asynchronous"))
    figures["efficiency"] = _numbers(fields, "efficiency", CLASSES, {})
    Device("the model", "", "", **figures)  # checks them where they are written
    if not fields.has("memory"):
        return figures, None
    return figures, _memory(Fields(fields.take("memory"), fields.path, f"{fields.place}.memory"), "memory")


class _Reader:
    """Collects pools, devices, channels and routes in file order, each checked before it is added."""

    def __init__(self, top: Fields) -> None:
        self.top = top
        self.models: dict[str, _Model] = {}
        self.pools: dict[str, Pool] = {}
        self.devices: dict[str, Device] = {}
        self.hosts: list[tuple[Fields, str]] = []
        self.channels: dict[str, Channel] = {}
        self.routes: dict[tuple[str, str], Route] = {}

    def each(self, field: str, read: Callable[[Fields], None], *, most: int = MAX_CHANNELS) -> None:
        """Read every table of a list with `read`, which takes all the fields there may be."""
        for k, table in enumerate(self.top.items(field, (), most=most)):
            self.one(Fields(table, self.top.path, f"{field}[{k}]"), read)

    def one(self, fields: Fields, read: Callable[[Fields], Any]) -> Any:
        """Read one table; a rule of machines that it breaks is a fault of this table."""
        try:
            found = read(fields)
        except MachineError as error:
            raise fields.fault(str(error)) from error
        fields.done()
        return found

    def read_models(self) -> None:
        """Read all of [models]."""
        tables = Fields(self.top.take("models", {}), self.top.path, "models")
        for name, table in tables.table.items():
            fields = Fields(table, self.top.path, f"models.{_name(tables, '', name)}")
            self.models[name] = self.one(fields, _model)

    def pool(self, fields: Fields) -> None:
        """One of [[pools]]."""
        name = _name(fields, "name")
        if name in self.pools:
            raise fields.fault(f"two pools are named {name!r}", "name")
        self.pools[name] = _memory(fields, name)

    def device(self, fields: Fields) -> None:
        """One of [[devices]]: one device, or several that are alike."""
        names = self._new_devices(fields)
        figures, memory, label = self._figures(fields)
        host = _name(fields, "host") if fields.has("host") else None
        self.hosts += [] if host is None else [(fields, host)]
        pool = _among(fields, fields.take("pool"), "pool", self.pools) if fields.has("pool") else None
        if pool is None and memory is None:
            raise fields.fault('has no memory; give pool = "NAME" or memory = {bytes = "12GiB"}')
        for name in names:
            if pool is None and memory is not None:
                if name in self.pools:
                    raise fields.fault(f"a pool named {name!r} exists already; say pool = ... which one to use")
                self.pools[name] = replace(memory, name=name)
            self.devices[name] = Device(name, label or name, pool or name, host, **figures)

    def _new_devices(self, fields: Fields) -> list[str]:
        """Take the names that one of [[devices]] gives; none may be taken already."""
        if fields.has("name") == fields.has("names"):
            raise fields.fault("needs either name, or names for several devices that are alike")
        field = "name" if fields.has("name") else "names"
        given = [fields.take(field)] if field == "name" else fields.items(field, most=MAX_DEVICES)
        if len(self.devices) + len(given) > MAX_DEVICES:
            raise fields.fault(f"more than {MAX_DEVICES} devices in all; that many are allowed", field)
        names = [_name(fields, field, name) for name in given]
        twice = next((name for k, name in enumerate(names) if name in self.devices or name in names[:k]), None)
        if twice is not None:
            raise fields.fault(f"two devices are named {twice!r}", field)
        return names

    def _figures(self, fields: Fields) -> tuple[dict[str, Any], Pool | None, str | None]:
        """Take a device's figures from its model or from its own table; and the model's name."""
        label = _name(fields, "model") if fields.has("model") else None
        own = [field for field in _FIGURES if fields.has(field)]
        if label is not None and (label in self.models or not own):
            _among(fields, label, "model", self.models)
            if own:
                raise fields.fault(f"model {label!r} has its own figures; leave this out or use another model", own[0])
            return *self.models[label], label
        if fields.has("pool") and fields.has("memory"):
            raise fields.fault("given together with pool; one of the two is allowed", "memory")
        return *_model(fields), label

    def _add_channel(self, fields: Fields, name: str, bytes_per_s: float, latency_s: float) -> str:
        """Add a channel and return its name."""
        if name in self.channels:
            raise fields.fault(f"two channels are named {name!r}; is a link given twice?")
        if len(self.channels) >= MAX_CHANNELS:
            raise fields.fault(f"more than {MAX_CHANNELS} channels in all; that many are allowed")
        self.channels[name] = Channel(name, bytes_per_s, latency_s)
        return name

    def _add_route(self, fields: Fields, source: str, target: str, *channels: str) -> None:
        """Add a route; there is at most one for an ordered pair, so no file expands beyond all pairs."""
        if source == target or (source, target) in self.routes:
            raise fields.fault(f"the route from {source!r} to {target!r} is given twice, or leads to itself")
        self.routes[source, target] = Route(source, target, channels)

    def channel(self, fields: Fields) -> None:
        """One of [[channels]]."""
        name = _name(fields, "name", longest=MAX_CHANNEL_NAME)
        self._add_channel(fields, name, fields.number("bytes_per_s"), fields.number("latency_s", 0.0, high=1e6))

    def route(self, fields: Fields) -> None:
        """One of [[routes]]."""
        source, target = (_among(fields, fields.take(end), end, self.devices) for end in ("source", "target"))
        via = [_among(fields, name, "channels", self.channels) for name in fields.items("channels", most=64)]
        self._add_route(fields, source, target, *via)

    def link(self, fields: Fields) -> None:
        """One of [[links]]: pairs of devices, each with a channel for each direction or one for both."""
        forth, latency = fields.number("bytes_per_s"), fields.number("latency_s", 0.0, high=1e6)
        back, duplex = fields.number("bytes_per_s_back", forth), fields.flag("duplex", True)
        if not duplex and "bytes_per_s_back" in fields.table:
            raise fields.fault("a link that is not duplex has one channel, so one rate", "bytes_per_s_back")
        for k, pair in enumerate(fields.items("between", most=MAX_CHANNELS)):
            if not isinstance(pair, list) or len(pair) != 2:
                raise fields.fault(f"expected a list of two devices, found {describe(pair)}", f"between[{k}]")
            a, b = (_among(fields, end, f"between[{k}]", self.devices) for end in pair)
            out = self._add_channel(fields, f"{a}>{b}" if duplex else f"{a}<>{b}", forth, latency)
            self._add_route(fields, a, b, out)
            self._add_route(fields, b, a, self._add_channel(fields, f"{b}>{a}", back, latency) if duplex else out)

    def switch(self, fields: Fields) -> None:
        """One of [[switches]]: every port has a channel to the switch and one from it."""
        name = _name(fields, "name")
        rates = fields.number("bytes_per_s"), fields.number("latency_s", 0.0, high=1e6)
        ports = self._ports(fields)
        labels = [port[0] if len(port) == 1 else f"{port[0]} and {len(port) - 1} more" for port in ports]
        into = [self._add_channel(fields, f"{label}>{name}", *rates) for label in labels]
        out = [self._add_channel(fields, f"{name}>{label}", *rates) for label in labels]
        peer = fields.flag("peer", True)
        if not peer and not fields.has("uplink"):
            raise fields.fault("without peer routes and without uplink the switch connects nothing", "peer")
        for i, j in itertools.permutations(range(len(ports) if peer else 0), 2):
            for a, b in itertools.product(ports[i], ports[j]):
                self._add_route(fields, a, b, into[i], out[j])
        if fields.has("uplink"):
            inner = Fields(fields.take("uplink"), fields.path, f"{fields.place}.uplink")
            to = _among(inner, inner.take("to"), "to", self.devices)
            rates = inner.number("bytes_per_s"), inner.number("latency_s", 0.0, high=1e6)
            inner.done()
            up, down = (self._add_channel(inner, way, *rates) for way in (f"{name}>{to}", f"{to}>{name}"))
            for i, port in enumerate(ports):
                for device in port:
                    self._add_route(inner, device, to, into[i], up)
                    self._add_route(inner, to, device, down, out[i])

    def _ports(self, fields: Fields) -> list[list[str]]:
        """Take the members of a switch: a device has a port of its own, a list of devices shares one."""
        ports = []
        for k, member in enumerate(fields.items("members", most=MAX_DEVICES)):
            given = member if isinstance(member, list) else [member]
            ports.append([_among(fields, device, f"members[{k}]", self.devices) for device in given[: MAX_DEVICES + 1]])
        members = [device for port in ports for device in port]
        if not all(ports) or not members or len(set(members)) != len(members):
            raise fields.fault("a member twice, an empty list, or no members at all", "members")
        return ports
