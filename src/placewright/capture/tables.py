"""The tables in which a model keeps what it has: attributes of modules, and lists, dictionaries and objects in them.

They are read and written as they lie there, so that nothing of the model runs.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

REGISTRIES = ("_parameters", "_buffers", "_modules")
"""The attributes of a module in which torch keeps what is registered with it."""
_NOT_WALKED = frozenset({*sys.stdlib_module_names, "torch", "numpy", "placewright"})
"""Packages whose objects are left alone; modules of torch are walked all the same."""


@dataclass(frozen=True, eq=False, slots=True)
class Table:
    """One dictionary or list, the path that leads to it, and the module that it belongs to."""

    path: str
    scope: str
    content: Any
    registry: bool = False
    """Whether it is one of the `REGISTRIES` of a module that is itself registered."""

    def items(self) -> list[tuple[Any, Any]]:
        """Return its keys, or places, and what is there."""
        return list(dict.items(self.content) if isinstance(self.content, dict) else enumerate(self.content))

    def put(self, key: Any, value: Any) -> None:
        """Put something at a key that is there."""
        _kind(self.content).__setitem__(self.content, key, value)

    def drop(self, keys: Iterable[Any]) -> None:
        """Remove keys of a dictionary."""
        for key in keys:
            _kind(self.content).__delitem__(self.content, key)

    def restore(self, items: Sequence[tuple[Any, Any]]) -> None:
        """Put back what `items` returned, where anything else is there now."""
        now = self.items()
        if len(now) == len(items) and all(a[1] is b[1] and a[0] == b[0] for a, b in zip(now, items, strict=True)):
            return
        kind = _kind(self.content)
        kind.clear(self.content)
        if kind in (dict, OrderedDict):
            kind.update(self.content, items)
        else:
            kind.extend(self.content, [value for _, value in items])


def tables_of(model: nn.Module) -> list[Table]:
    """Return every table of a model once, those of registered modules first."""
    tables: list[Table] = []
    registered = {id(module) for module in model.modules()}
    queue: deque[tuple[str, str, Any]] = deque((path, path, module) for path, module in model.named_modules())
    seen: set[int] = set()
    while queue:
        path, scope, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            scope = path
            for name in REGISTRIES:
                content = vars(value)[name]
                seen.add(id(content))
                tables.append(Table(path, scope, content, registry=id(value) in registered))
            queue.extend((joined(path, name), scope, part) for name, part in value._modules.items())
        content = _content(value)
        if content is None:
            continue
        if not isinstance(content, tuple):
            tables.append(Table(path, scope, content))
        items = content.items() if isinstance(content, dict) else enumerate(content)
        queue.extend((joined(path, key), scope, part) for key, part in items if _content(part) is not None)
    return tables


def joined(path: str, key: object) -> str:
    """Return the path of what a table has at a key."""
    word = str(key) if isinstance(key, str | int) else type(key).__name__
    return f"{path}.{word}" if path else word


def saved(tables: Iterable[Table]) -> list[tuple[Table, list[tuple[Any, Any]]]]:
    """Return what is in the tables now."""
    return [(table, table.items()) for table in tables]


def links_to(tables: Sequence[Table], ends: Iterable[Table]) -> list[tuple[Table, Any, Any]]:
    """Return by which keys of which tables these tables are reached, and what is there; registered things are not."""
    parents: dict[int, list[tuple[Table, Any, Any]]] = {}
    for table in tables:
        for key, value in () if table.registry else table.items():
            for part in (value, *parts_of(value)) if isinstance(value, tuple) else (value,):
                content = _content(part)
                if content is not None:
                    parents.setdefault(id(content), []).append((table, key, value))
    links = []
    reached, queue = set(), deque(id(table.content) for table in ends)
    while queue:
        end = queue.popleft()
        if end not in reached:
            reached.add(end)
            links += parents.get(end, [])
            queue.extend(id(table.content) for table, _, _ in parents.get(end, []))
    return links


def _content(value: Any) -> Any:
    """Return the dictionary, list or tuple in which a value keeps others; None where it keeps none."""
    if isinstance(value, dict | list | deque | tuple):
        return value
    package = type(value).__module__.partition(".")[0]
    if not isinstance(value, nn.Module) and (isinstance(value, type) or package in _NOT_WALKED):
        return None
    try:
        own = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return None
    return own if isinstance(own, dict) else None


def _kind(content: Any) -> Any:
    """Return the class of Python that a table is of: what a class derived from it adds is not called."""
    return next(kind for kind in (OrderedDict, dict, list, deque) if isinstance(content, kind))


def parts_of(value: tuple[Any, ...]) -> Iterator[Any]:
    """Return the values in a tuple and in tuples within it."""
    for part in value:
        if isinstance(part, tuple):
            yield from parts_of(part)
        else:
            yield part
