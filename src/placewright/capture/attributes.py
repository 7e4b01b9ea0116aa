"""Tensors that a model keeps as plain attributes, or in lists, dictionaries and objects: buffers in all but name.

A trace takes them for constants, a new one wherever they are used, and what the model writes into them is written for
real. So the step has a buffer for each of them and puts these into their places for every run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from placewright.capture import torch_private
from placewright.capture.tables import Table, joined, links_to, parts_of, saved, tables_of

SIZES_WITH_VALUES = (1, 1024)
"""Where values decide what is computed: the elements of tensors that get their values, at first and then."""
_Make = Callable[[], Any]


class _Kept:
    """What `Attributes` knows. It is no module and no list, so that nothing takes it for a part of the model."""

    def __init__(self, tables: list[Table], prefix: str) -> None:
        self.tables, self.prefix = tables, prefix
        self.slots: list[tuple[Table, Any, _Make]] = []
        """Where to put what for a run."""
        self.links: list[tuple[Table, Any, Any]] = []
        """What leads to those places: torch.export leaves copies of lists and dictionaries behind when it has run."""
        self.numbers: dict[tuple[Any, ...], int] = {}
        self.names: list[str] = []
        self.taken: set[str] = set()
        self.scopes: list[str] = []
        self.originals: list[torch.Tensor] = []
        self.spans: dict[int, list[tuple[int, int, str]]] = {}
        """Of every storage, the first byte and the end of the tensors in it, with their names."""
        self.values: dict[int, torch.Tensor] = {}
        """Real tensors, for what keeps its values."""

    def note_span(self, tensor: torch.Tensor, name: str) -> None:
        """Note where in its storage a tensor of this name lies."""
        reach = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = int(tensor.storage_offset())
        span = (begin * tensor.element_size(), (begin + max(int(reach), 0)) * tensor.element_size(), name)
        self.spans.setdefault(torch_private.storage_id(tensor), []).append(span)
        self.taken.add(name)

    def short(self, path: str) -> str:
        """Return a path in the model instead of one in the step."""
        return "" if path == self.prefix[:-1] else path.removeprefix(self.prefix)


class Attributes(nn.Module):
    """A buffer for every tensor that a model keeps as a plain attribute."""

    def __init__(self, model: nn.Module, prefix: str) -> None:
        super().__init__()
        kept = self.kept = _Kept(tables_of(model), prefix)
        registered: dict[tuple[Any, ...], tuple[Table, str, torch.Tensor]] = {}
        for table in kept.tables:
            for name, value in table.items() if table.registry else ():
                if _is_plain(value):
                    registered.setdefault(torch_private.place_of(value), (table, name, value))
                    kept.note_span(value, kept.short(joined(table.path, name)))
        for table in kept.tables:
            for key, value in () if table.registry else table.items():
                make = self._maker(value, joined(table.path, key), table.scope, registered)
                if make is not None:
                    kept.slots.append((table, key, make))
        kept.links = links_to(kept.tables, (table for table, _, _ in kept.slots))

    def named(self, prefix: str) -> dict[str, tuple[str, str]]:
        """Return of every buffer, by its name below `prefix`, the path of the attribute and of its module."""
        rows = zip(self.kept.names, self.kept.scopes, strict=True)
        return {f"{prefix}{k}": row for k, row in enumerate(rows)}

    def overlaps(self) -> dict[str, tuple[str, ...]]:
        """Return, of every attribute that shares bytes with other tensors, the names of these."""
        found = {}
        for spans in self.kept.spans.values():
            for begin, end, name in spans:
                others = tuple(other for b, e, other in spans if other != name and b < end and begin < e)
                if others:
                    found[name] = others
        return {name: found[name] for name in self.kept.names if name in found}

    def keep_values(self, elements: int) -> bool:
        """Let tensors of up to so many elements be constants with values instead; whether there are any."""
        with torch_private.without_fake_mode(), torch.no_grad():
            for k, tensor in enumerate(self.kept.originals):
                value = torch_private.constant_of(tensor) if torch_private.is_fake(tensor) else tensor
                if value is not None and value.device.type != "meta" and value.numel() <= elements:
                    self.kept.values[k] = value.detach().to("cpu", copy=True)
        return bool(self.kept.values)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Have the buffers where the attributes are; afterwards all attributes are as they were before."""
        before = saved(self.kept.tables)
        try:
            for table, key, value in self.kept.links:
                table.put(key, value)
            for table, key, make in self.kept.slots:
                table.put(key, make())
            yield
        finally:
            for table, items in before:
                if table.registry:  # what was there may be exchanged by whoever runs the step
                    table.drop(dict(table.items()).keys() - dict(items).keys())
                else:
                    table.restore(items)

    def _maker(self, value: Any, path: str, scope: str, registered: dict[tuple[Any, ...], Any]) -> _Make | None:
        """Return what makes the stand-in of a tensor, or of a tuple with tensors; None for anything else."""
        if isinstance(value, tuple) and any(_is_plain(part) for part in parts_of(value)):
            makers = [self._maker(part, joined(path, k), scope, registered) for k, part in enumerate(value)]
            parts = list(zip(value, makers, strict=True))
            build = getattr(type(value), "_make", tuple)
            return lambda: build([part if make is None else make() for part, make in parts])
        if not _is_plain(value):
            return None
        place = torch_private.place_of(value)
        if place in registered:
            table, name, tensor = registered[place]
            same = tensor is value
            return lambda: table.content[name] if same else table.content[name].detach()
        number = self.kept.numbers.setdefault(place, len(self.kept.names))
        if number == len(self.kept.names):
            self._hold(value, path, scope)
        return lambda: self.kept.values.get(number, self._buffers[str(number)])

    def _hold(self, tensor: torch.Tensor, path: str, scope: str) -> None:
        """Register a buffer of the size of a tensor."""
        with torch_private.without_fake_mode():
            size = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        self.register_buffer(str(len(self.kept.names)), size, persistent=False)
        name = self.kept.short(path)
        while name in self.kept.taken:
            name += "_"
        self.kept.note_span(tensor, name)
        self.kept.names.append(name)
        self.kept.scopes.append(self.kept.short(scope))
        self.kept.originals.append(tensor)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor of torch's own kinds, dense and of a known size."""
    kinds = (torch.Tensor, nn.Parameter, nn.Buffer)
    if not isinstance(value, torch.Tensor) or not (type(value) in kinds or torch_private.is_fake(value)):
        return False
    return value.layout is torch.strided and not value.is_quantized
