"""Machine: devices, the memory pools they allocate from, and the channels between them.

A full-duplex link is two channels. A route is, for an ordered pair of devices, the channels that a
transfer occupies, all at once. Presets are the TOML files in machines/; docs/machines.md describes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from placewright.checks import MAX_BYTES, FrozenDict
from placewright.errors import MachineError, UnknownNameError

MAX_DEVICES = 256
MAX_CHANNELS = 4096


@dataclass(frozen=True)
class Pool:
    """Memory that one or several devices allocate from, in whole granules.

    `reserve_bytes` is what context, libraries and fragmentation keep from the framework.
    """

    name: str
    bytes: int
    granule_bytes: int = 512
    reserve_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.bytes <= MAX_BYTES:
            raise MachineError(f"pool {self.name!r}: bytes is {self.bytes}; 0 to {MAX_BYTES} is allowed")
        if not 1 <= self.granule_bytes <= 1 << 30:
            raise MachineError(f"pool {self.name!r}: granule_bytes is {self.granule_bytes}; 1 to 2**30 is allowed")
        if not 0 <= self.reserve_bytes <= self.bytes:
            raise MachineError(
                f"pool {self.name!r}: reserve_bytes is {self.reserve_bytes}; 0 to its bytes, {self.bytes}, is allowed"
            )

    @property
    def capacity_bytes(self) -> int:
        """What the framework can allocate."""
        return self.bytes - self.reserve_bytes


@dataclass(frozen=True)
class Device:
    """Runs one operation at a time. `host` is the device that stages its copies; a host is its own."""

    name: str
    model: str
    pool: str
    host: str | None = None
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float = 0.0
    launch_s: float = 0.0
    asynchronous: bool = False
    efficiency: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "efficiency"):
            object.__setattr__(self, name, FrozenDict(getattr(self, name)))
        for name, rate in (("bytes_per_s", self.bytes_per_s), *self.flops_per_s.items()):
            if not 0 <= rate <= 1e30:
                raise MachineError(f"device {self.name!r}: {name} is {rate}; 0 to 1e30 is allowed")
        if not 0 <= self.launch_s <= 1e6:
            raise MachineError(f"device {self.name!r}: launch_s is {self.launch_s}; 0 to 1e6 is allowed")
        for name, share in self.efficiency.items():
            if not 0 < share <= 1:
                raise MachineError(f"device {self.name!r}: efficiency of {name!r} is {share}; above 0, at most 1")

    @property
    def is_host(self) -> bool:
        """Whether other devices' copies are staged through this one."""
        return self.host == self.name


@dataclass(frozen=True)
class Channel:
    """Carries one transfer at a time, in one direction."""

    name: str
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s <= 1e30:
            raise MachineError(f"channel {self.name!r}: bytes_per_s is {self.bytes_per_s}; above 0, at most 1e30")
        if not 0 <= self.latency_s <= 1e6:
            raise MachineError(f"channel {self.name!r}: latency_s is {self.latency_s}; 0 to 1e6 is allowed")


@dataclass(frozen=True)
class Route:
    """The channels, by name, that a transfer from `source` to `target` occupies."""

    source: str
    target: str
    channels: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """Devices, pools, channels and routes; checked once."""

    name: str
    devices: tuple[Device, ...]
    pools: tuple[Pool, ...]
    channels: tuple[Channel, ...] = ()
    routes: tuple[Route, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        for attribute in ("devices", "pools", "channels", "routes"):
            object.__setattr__(self, attribute, tuple(getattr(self, attribute)))
        self._check_counts()
        for device in self.devices:
            if device.pool not in self.pool_index:
                raise MachineError(f"device {device.name!r} allocates from pool {device.pool!r}, which does not exist")
            if device.host is not None and device.host not in self.device_index:
                raise MachineError(f"device {device.name!r} has host {device.host!r}, which does not exist")
        known = {channel.name for channel in self.channels}
        seen = set()
        for route in self.routes:
            where = f"route {route.source!r} to {route.target!r}"
            if route.source not in self.device_index or route.target not in self.device_index:
                raise MachineError(f"{where}: one of the devices does not exist")
            if route.source == route.target or (route.source, route.target) in seen:
                raise MachineError(f"{where}: given twice, or from a device to itself")
            if not 1 <= len(route.channels) <= 64 or not known.issuperset(route.channels):
                raise MachineError(f"{where}: needs 1 to 64 channels, all of which exist")
            seen.add((route.source, route.target))

    def _check_counts(self) -> None:
        if not 1 <= len(self.devices) <= MAX_DEVICES:
            raise MachineError(f"machine {self.name!r} has {len(self.devices)} devices; 1 to {MAX_DEVICES} are allowed")
        if len(self.channels) > MAX_CHANNELS:
            raise MachineError(f"machine {self.name!r} has {len(self.channels)} channels; at most {MAX_CHANNELS}")
        for kind in ("devices", "pools", "channels"):
            names = [thing.name for thing in getattr(self, kind)]
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise MachineError(f"machine {self.name!r}: two {kind} are named {twice!r}")
        if sum(pool.bytes for pool in self.pools) > MAX_BYTES:
            raise MachineError(f"machine {self.name!r}: its pools hold more than {MAX_BYTES} bytes in all")

    @cached_property
    def device_index(self) -> dict[str, int]:
        """Device name to index."""
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def pool_index(self) -> dict[str, int]:
        """Pool name to index."""
        return {pool.name: i for i, pool in enumerate(self.pools)}

    @cached_property
    def channel_index(self) -> dict[str, int]:
        """Channel name to index."""
        return {channel.name: i for i, channel in enumerate(self.channels)}

    @cached_property
    def pool_of(self) -> tuple[int, ...]:
        """The pool of each device."""
        return tuple(self.pool_index[device.pool] for device in self.devices)

    def device(self, name: str) -> int:
        """Index of the device of that name."""
        if name not in self.device_index:
            raise UnknownNameError("device", name, self.device_index, f"They are those of machine {self.name!r}.")
        return self.device_index[name]

    @cached_property
    def _given(self) -> dict[tuple[int, int], tuple[int, ...]]:
        index = self.device_index
        return {
            (index[r.source], index[r.target]): tuple(self.channel_index[c] for c in r.channels) for r in self.routes
        }

    def route(self, source: int, target: int) -> tuple[int, ...] | None:
        """The channels from one device to another, with repeats; `None` where there is no way.

        A route that is not given goes from the device to its host, to the other's host, to the device.
        Devices of one pool need none.
        """
        if self.pool_of[source] == self.pool_of[target]:
            return ()
        if (source, target) in self._given:
            return self._given[source, target]
        stops = [source, *self._host(source), *self._host(target), target]
        channels: tuple[int, ...] = ()
        for here, there in pairwise(stops):
            if self.pool_of[here] == self.pool_of[there]:
                continue
            if (here, there) not in self._given or (here, there) == (source, target):
                return None
            channels += self._given[here, there]
        return channels or None

    def _host(self, device: int) -> list[int]:
        host = self.devices[device].host
        return [] if host is None else [self.device_index[host]]

    def rates(self, source: int, target: int) -> tuple[float, float] | None:
        """Latency in seconds and bytes per second of a route; a channel met k times counts 1/k of its rate."""
        channels = self.route(source, target)
        return None if channels is None else self.path_rates(channels)

    def path_rates(self, channels: tuple[int, ...]) -> tuple[float, float]:
        """Latency in seconds and bytes per second over channels, given with repeats."""
        latency = sum(self.channels[c].latency_s for c in channels)
        met = Counter(channels)
        return latency, min((self.channels[c].bytes_per_s / k for c, k in met.items()), default=float("inf"))

    def with_memory(self, pools: Mapping[str, int]) -> Machine:
        """The machine with pools (named by themselves or by a device) capped: that much can be allocated."""
        capped = list(self.pools)
        for name, size in pools.items():
            pool = name if name in self.pool_index else self.devices[self.device(name)].pool
            k = self.pool_index[pool]
            capped[k] = replace(capped[k], bytes=size, reserve_bytes=0)
        return replace(self, pools=tuple(capped))
