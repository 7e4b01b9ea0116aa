"""What follows the gradients: the optimiser's state, an update for every trained parameter, and the stores.

An update reads parameter, gradient and state, and writes parameter and state in place. Whatever is overwritten
(parameters, state, buffers that the model writes) has a store, which is where the new value goes home to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch

from placewright.capture.build import Builder
from placewright.capture.optimizers import Optimizer
from placewright.capture.records import Draft, Reference, Storage
from placewright.capture.work import dtype_of, touched_bytes
from placewright.errors import CaptureError, UnknownNameError
from placewright.operations import Tensor

UPDATE_ORDERS = ("early", "end")
"""Updates right after their gradient is final, or after everything else, as an eager optimiser has them."""


def check_update_order(update_order: str) -> None:
    """Refuse an order that does not exist."""
    if update_order not in UPDATE_ORDERS:
        raise UnknownNameError("update_order", str(update_order), UPDATE_ORDERS)


def trained_parameters(builder: Builder) -> dict[str, torch.Tensor]:
    """Return the parameters that ask for a gradient, by their first name."""
    trained: dict[str, torch.Tensor] = {}
    for name, tensor in builder.traced.stand_ins.items():
        if isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad:
            trained.setdefault(builder.first_name[name], tensor)
    return trained


def gradients(builder: Builder, trained: Iterable[str]) -> dict[str, Reference]:
    """Return the tensor that is each parameter's gradient; one that has none is an error."""
    found: dict[str, Reference] = {}
    names: dict[str, str] = {}
    for node, role, name in builder.traced.outputs:
        if role == "gradient" and node in builder.values:
            first = builder.first_name[name]
            if names.setdefault(first, name) != name:
                raise CaptureError(
                    f"{names[first]!r} and {name!r} are two parameters that look at the same elements: each has a "
                    "gradient, state and an update of its own, which capture cannot express. Tie them by giving one "
                    "nn.Parameter both names, clone one of them, or freeze one with requires_grad_(False)",
                    parameters=[names[first], name],
                )
            found[first] = builder.values[node][0].now()
    missing = [name for name in trained if name not in found]
    if missing:
        shown = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        raise CaptureError(
            f"no gradient reaches {shown}: the loss does not depend on {'it' if len(missing) == 1 else 'them'}. Freeze "
            "what is not trained with requires_grad_(False), or use it in the loss",
            parameters=missing,
        )
    return found


def with_updates(builder: Builder, optimizer: Optimizer | None, update_order: str) -> list[Draft]:
    """Return the drafts of the whole step in program order: those that were built, updates and stores among them."""
    drafts = list(builder.drafts)
    place = {draft.name: k for k, draft in enumerate(drafts)}
    beside: dict[int, list[Draft]] = {}
    if optimizer is not None:
        trained = trained_parameters(builder)
        if not trained:
            raise CaptureError("no parameter asks for a gradient, so there is nothing to train; leave optimizer out")
        final = gradients(builder, trained)
        for name, parameter in trained.items():
            storage = builder.held[name].storage
            state, update = _update(builder, optimizer, storage, parameter, final[name])
            if state is not None:
                beside.setdefault(place[storage.root[0]], []).append(state)
            needed = max(place[owner] for owner in (*update.after, *(owner for owner, _ in update.inputs))
                         if owner in place)  # fmt: skip
            at = needed if update_order == "early" else len(drafts) - 1
            row = [update, _store(builder, name, update.scope, [(update.name, 0)])]
            if state is not None:
                news = [(update.name, k) for k in range(1, len(update.outputs))]
                row.append(_store(builder, state.name, update.scope, news))
            beside.setdefault(at, []).extend(row)
    for storage in _written_by_model(builder):
        holder = builder.by_name[storage.root[0]]
        store = _store(builder, holder.name, holder.scope, [storage.latest])
        beside.setdefault(place[storage.latest[0]], []).insert(0, store)
    return [each for k, draft in enumerate(drafts) for each in (draft, *beside.get(k, ()))]


def _update(
    builder: Builder, optimizer: Optimizer, storage: Storage, parameter: torch.Tensor, gradient: Reference
) -> tuple[Draft | None, Draft]:
    """Return the state of a parameter, where it has one, and its update."""
    name, scope = storage.root[0], builder.by_name[storage.root[0]].scope
    dtype = dtype_of([parameter])
    update = Draft(builder.fresh_name(f"{name}.update"), optimizer.name, "update", scope, dtype=dtype)
    update.inputs = {storage.latest: None, gradient: None}
    update.after = dict.fromkeys(storage.readers)
    update.outputs = [Tensor(storage.bytes, storage.root, in_place=True, shape=tuple(parameter.shape))]
    update.flops = optimizer.flops(parameter)
    update.workspace_bytes = optimizer.workspace_bytes(parameter)
    kept = optimizer.state(parameter)
    state = None
    if kept:
        state = Draft(builder.fresh_name(f"{name}.state"), f"{optimizer.name}_state", "parameter", scope, dtype=dtype)
        for k, (_, shape, kind) in enumerate(kept):
            size = math.prod(shape) * kind.itemsize
            state.outputs.append(Tensor(size, shape=shape))
            update.inputs[state.name, k] = None
            update.outputs.append(Tensor(size, (state.name, k), in_place=True, shape=shape))
    update.bytes_written = sum(tensor.bytes for tensor in update.outputs)
    update.bytes_read = update.bytes_written + touched_bytes(parameter)
    return state, update


def _store(builder: Builder, stored: str, scope: str, values: Iterable[Reference]) -> Draft:
    """Return the store of what an operation of phase `parameter` holds."""
    return Draft(builder.fresh_name(f"{stored}.store"), "store", "store", scope, inputs=dict.fromkeys(values))


def _written_by_model(builder: Builder) -> Sequence[Storage]:
    """Return the persistent storages that the model itself writes."""
    seen: Mapping[int, Storage] = {
        id(value.storage): value.storage for values in builder.values.values() for value in values.values()
    }
    return [storage for storage in seen.values() if storage.persistent and storage.version]
