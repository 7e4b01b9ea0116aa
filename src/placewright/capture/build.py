"""From the FX graph of a step to an operation graph: storages, views, writes in place, updates and stores.

Operations stay in the order in which the framework runs them. Tensors that share bytes are found by the storage of
the fake tensors that stand for them; a write in place makes a new version, which all later readers of that storage
read, and which waits for those who read the version before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import Node

from placewright.capture import torch_private
from placewright.capture.constants import first_uses
from placewright.capture.faults import data_decide, not_dense, not_read, written_constant
from placewright.capture.recompute import ORIGINAL, REPETITION, is_backward
from placewright.capture.records import Draft, Storage, Value
from placewright.capture.scopes import clean_scope
from placewright.capture.trace import Traced
from placewright.capture.work import dtype_of, kind_of, touched_bytes, work_of
from placewright.errors import CaptureError
from placewright.operations import Tensor

_SAME = frozenset({"detach", "alias", "lift_fresh", "lift"})
"""Kinds that hand their input on as it is."""


class Builder:
    """Walks a traced graph once and drafts its operations."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.drafts: list[Draft] = []
        self.values: dict[Node, dict[int, Value]] = {}
        """For every node, the tensors that it returns, by their place; a single tensor is at 0."""
        self.held: dict[str, Value] = {}
        """Parameters and buffers, by their first name."""
        self.first_name: dict[str, str] = {}
        """Of every name of a parameter or buffer, the first name of that tensor."""
        self.aliases: dict[Node, Node] = {}
        """Nodes that are no operation: they return (a view of) what another node returns."""
        self.by_name: dict[str, Draft] = {}
        self._names: dict[str, int] = {}
        self._before: list[str] = []
        """The last operation of the backward pass so far: what is repeated next waits for it."""
        self._recomputed: dict[str, object] = {}
        """Of every repeated operation, the call that it was repeated for."""
        self._unwritten = dict(traced.overlaps)
        """Operations whose tensor may not be written: constants, and what overlaps with others that are used."""
        self._loss_node: Node | None = None

    # ---- inputs ------------------------------------------------------------------------------

    def add_inputs(self) -> None:
        """Draft parameters, buffers and inputs."""
        by_storage: dict[int, str] = {}
        used = {name for node, _, name in self.traced.inputs if node.users}
        for name, tensor in self.traced.stand_ins.items():
            if name in self.traced.attributes and name not in used:
                continue  # a tensor that lies about in the model; buffers are of it all the same
            first = by_storage.setdefault(torch_private.storage_id(tensor), name)
            if first == name:
                scope = self.traced.attributes.get(name, name.rpartition(".")[0])
                self.held[name] = self._hold(name, tensor, scope)
                self.first_name[name] = name
            else:
                if not _same_place(tensor, self.traced.stand_ins[first]):
                    raise CaptureError(
                        f"parameters {first!r} and {name!r} are parts of one storage, which capture cannot express; "
                        "clone one of them",
                        parameters=[first, name],
                    )
                self.first_name[name] = first
        loss = next((node for node, role, _ in self.traced.outputs if role == "output"), None)
        self._loss_node = loss if self.traced.has_loss else None
        for node, role, name in self.traced.inputs:
            if role in ("parameter", "buffer") and name in self.first_name:
                self.values[node] = {0: self.held[self.first_name[name]]}
            elif role == "input" and isinstance(node.meta.get("val"), torch.Tensor):
                self.values[node] = {0: self._data(name, node)}
            elif role == "tangent" and not self.traced.has_loss:
                self.values[node] = {0: self._data(f"gradient.{name}", node)}

    def _hold(self, name: str, tensor: torch.Tensor, scope: str) -> Value:
        """Draft the operation of a persistent tensor."""
        draft = self._draft(name, "parameter", "parameter", scope)
        draft.dtype = dtype_of([tensor])
        return self._own(draft, tensor, persistent=True)

    def _data(self, name: str, node: Node) -> Value:
        """Draft the operation of an input."""
        draft = self._draft(name, "input", "input", "")
        draft.node = node
        draft.dtype = dtype_of([node.meta["val"]])
        return self._own(draft, node.meta["val"])

    def fresh_name(self, name: str) -> str:
        """Return a name that nothing else has, and take it."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        while count and f"{name}_{count}" in self._names:
            count += 1
        if count:
            self._names[name] = count + 1
            name = f"{name}_{count}"
            self._names[name] = 1
        return name

    def _draft(self, name: str, kind: str, phase: str, scope: str) -> Draft:
        """Append an operation under a name that nothing else has."""
        draft = Draft(self.fresh_name(name), kind, phase, scope)
        self.drafts.append(draft)
        self.by_name[draft.name] = draft
        return draft

    def _own(self, draft: Draft, tensor: torch.Tensor, persistent: bool = False) -> Value:
        """Let an operation make a tensor with bytes of its own."""
        size = touched_bytes(tensor)
        reference = (draft.name, len(draft.outputs))
        draft.outputs.append(Tensor(size, shape=tuple(tensor.shape)))
        return Value(Storage(reference, size, persistent), reference, 0)

    # ---- operations --------------------------------------------------------------------------

    def add_operations(self) -> None:
        """Draft an operation for every node that computes, and views."""
        constants = first_uses(self.traced.module)
        for node in self.traced.module.graph.nodes:
            if node in constants:
                first = constants[node]
                if first is node:
                    tensor = getattr(self.traced.module, str(node.target))
                    self.values[node] = {0: self._hold(f"constant.{node.name.strip('_')}", tensor, "")}
                    self.drafts[-1].node = node
                    self._unwritten[self.drafts[-1].name] = ()
                self.values[node] = self.values[first]
            elif node.op == "placeholder" and node not in self.values and self._loss_node is not None:
                continue  # the gradient of the loss is drafted once the loss is there
            elif node.op == "call_function":
                self._add(node)
            if self._loss_node is not None and node is self._loss_node:
                self._start_backward(node)

    def _start_backward(self, loss: Node) -> None:
        """Draft the gradient of the loss, a one, with which the backward pass begins, unless it was traced too."""
        if all(role != "tangent" for _, role, _ in self.traced.inputs):
            return
        draft = self._draft("loss_gradient", "ones_like", "backward", "")
        draft.after = {self.values[loss][0].reference[0]: None}
        draft.dtype = dtype_of([loss.meta["val"]])
        made = self._own(draft, loss.meta["val"])
        draft.bytes_written = made.storage.bytes
        for node, role, _ in self.traced.inputs:
            if role == "tangent":
                self.values[node] = {0: made}
                draft.node = node

    def _add(self, node: Node) -> None:
        """Draft the operation of one node, or let the node stand for what it hands on."""
        if node.target is operator.getitem:
            source, place = node.args
            if source in self.values and place in self.values[source]:  # type: ignore[index]
                self.values[node] = {0: self.values[source][place]}  # type: ignore[index]
            return
        made = _outputs(node)
        arguments = [
            a for a in node.all_input_nodes if a in self.values and isinstance(a.meta.get("val"), torch.Tensor)
        ]
        written = [a for a in _written(node) if a in self.values]
        if not made and not written:
            return  # an assertion, or arithmetic on sizes
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise not_read(node)
        kind = kind_of(node.target)
        if kind in _SAME or self._is_whole_view_of_persistent(made, arguments, written):
            self.values[node] = {0: self.values[arguments[0]][0]}
            self.aliases[node] = arguments[0]
            return
        self._compute(node, kind, made, arguments, written)

    def _is_whole_view_of_persistent(
        self, made: Sequence[tuple[int, torch.Tensor]], arguments: Sequence[Node], written: Sequence[Node]
    ) -> bool:
        """Whether a node only looks at a whole parameter in another shape; then its readers read the parameter.

        A view that is an operation of its own would be sent as a transient; the parameter itself can be streamed.
        """
        if written or len(made) != 1 or len(arguments) != 1:
            return False
        storage = self.values[arguments[0]][0].storage
        same = torch_private.storage_id(made[0][1]) == torch_private.storage_id(arguments[0].meta["val"])
        return storage.persistent and same and touched_bytes(made[0][1]) == storage.bytes

    def _compute(
        self,
        node: Node,
        kind: str,
        made: Sequence[tuple[int, torch.Tensor]],
        arguments: Sequence[Node],
        written: Sequence[Node],
    ) -> None:
        """Draft an operation that computes or makes views."""
        phase = "backward" if is_backward(node) else "forward"
        scope = self._scope(node, arguments)
        word = f"backward.{kind}" if phase == "backward" and not kind.endswith("_backward") else kind
        draft = self._draft(f"{scope}.{word}" if scope else word, kind, phase, scope)
        draft.node = node
        draft.recompute = ORIGINAL in node.meta
        tensors = [a.meta["val"] for a in arguments]
        sources = {torch_private.storage_id(t): self.values[a][0] for t, a in zip(tensors, arguments, strict=True)}
        targets = {torch_private.storage_id(a.meta["val"]) for a in written}
        draft.inputs = {self.values[a][0].now(): None for a in arguments}
        values: dict[int, Value] = {}
        overwritten: set[int] = set()
        for place, tensor in made:
            key = torch_private.storage_id(tensor)
            if key not in sources:
                values[place] = self._own(draft, tensor)
            elif key in targets:
                values[place] = self._overwrite(draft, sources[key].storage, tensor)
                overwritten.add(key)
            else:
                values[place] = self._view(draft, sources[key], tensor)
        for target in written:  # what is written without being returned
            key = torch_private.storage_id(target.meta["val"])
            if key not in overwritten:
                self._overwrite(draft, sources[key].storage, target.meta["val"])
                overwritten.add(key)
        self.values[node] = values
        for argument in arguments:
            storage = self.values[argument][0].storage
            storage.readers.append(draft.name)
            storage.all_readers[draft.name] = None
        repetition = node.meta.get(REPETITION)
        if draft.recompute and not any(self._recomputed.get(name) == repetition for name, _ in draft.inputs):
            draft.after |= dict.fromkeys(self._before)
        elif phase == "backward" and not draft.recompute:
            self._before = [draft.name]
        if draft.recompute:
            self._recomputed[draft.name] = repetition
        if len(values) > len([v for v in values.values() if v.storage.root[0] != draft.name]) or overwritten:
            self._measure(draft, node, tensors, [t for _, t in made], overwritten)
        draft.dtype = draft.dtype if draft.bytes_written else dtype_of([t for _, t in made] or tensors)

    def _measure(
        self,
        draft: Draft,
        node: Node,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        overwritten: set[int],
    ) -> None:
        """Note what an operation that is no mere view does."""
        own = [t for t in outputs if torch_private.storage_id(t) in overwritten or _is_new(t, inputs)]
        silent = overwritten - {torch_private.storage_id(t) for t in outputs}
        own += [t for t in inputs if torch_private.storage_id(t) in silent]
        args = torch.fx.node.map_arg(node.args, lambda a: a.meta.get("val"))
        work = work_of(node.target, args, inputs, own)
        draft.flops, draft.bytes_read, draft.bytes_written = work.flops, work.bytes_read, work.bytes_written
        draft.workspace_bytes, draft.dtype = work.workspace_bytes, work.dtype

    def _view(self, draft: Draft, source: Value, tensor: torch.Tensor) -> Value:
        """Let an operation look at the bytes of another tensor."""
        storage = source.storage
        base = storage.latest if storage.persistent and storage.version else storage.root
        reference = (draft.name, len(draft.outputs))
        draft.outputs.append(Tensor(min(touched_bytes(tensor), storage.bytes), base, shape=tuple(tensor.shape)))
        return Value(storage, reference, storage.version)

    def _overwrite(self, draft: Draft, storage: Storage, tensor: torch.Tensor) -> Value:
        """Let an operation write a storage: a new version, after all who read the one before."""
        self._check_written(draft, storage.root[0])
        draft.after |= dict.fromkeys(name for name in storage.readers if name != draft.name)
        reference = (draft.name, len(draft.outputs))
        draft.outputs.append(Tensor(storage.bytes, storage.root, in_place=True, shape=tuple(tensor.shape)))
        storage.version += 1
        storage.latest, storage.readers = reference, []
        return Value(storage, reference, storage.version)

    def _check_written(self, draft: Draft, name: str) -> None:
        """Refuse to write a tensor of which it is not known who reads it."""
        overlapping = self._unwritten.get(name)
        if overlapping is None or draft.node is None:
            return
        others = [other for other in overlapping if other in self.held]
        if others or not overlapping:
            raise written_constant(draft.node, name, others)

    def _scope(self, node: Node, arguments: Sequence[Node]) -> str:
        """Return the path of the module that a node belongs to; the sum of two gradients is where its first is."""
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
        noted = (node.meta.get("custom") or {}).get("scope")
        if noted is not None:
            return clean_scope(noted, self.traced.scopes)
        if stack:
            return clean_scope(next(reversed(stack.values()))[0], self.traced.scopes)
        makers = (self.by_name[self.values[a][0].reference[0]] for a in arguments)
        return next((maker.scope for maker in makers if maker.scope), "")


def _same_place(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage are the same elements, if seen in another shape."""
    span = [(t.storage_offset() * t.element_size(), touched_bytes(t)) for t in (tensor, other)]
    return span[0] == span[1]


def _outputs(node: Node) -> list[tuple[int, torch.Tensor]]:
    """Return the tensors that a node returns, with their places."""
    value = node.meta.get("val")
    several = value if isinstance(value, list | tuple) else [value]
    made = [(k, each) for k, each in enumerate(several) if isinstance(each, torch.Tensor)]
    for _, tensor in made:
        if tensor.layout is not torch.strided:
            raise not_dense(node, tensor)
        if any(type(size) is not int for size in tensor.shape):
            raise data_decide(node, "the size of a tensor")
    return made


def _written(node: Node) -> Iterator[Node]:
    """Return the arguments that an operator writes in place, by its schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for k, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[k] if k < len(node.args) else node.kwargs.get(argument.name)
            yield from (v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Node))


def _is_new(tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether a tensor shares no bytes with the inputs."""
    key: Any = torch_private.storage_id(tensor)
    return all(torch_private.storage_id(t) != key for t in inputs)
