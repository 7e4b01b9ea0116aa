"""Every interface of torch that is not public, in one place, each looked for before it is used.

Capture needs fake tensors, the joint graph of forward and backward, and the inside of checkpointing. None of
these is covered by torch's promise of stability; what is missing raises a CaptureError that names it and the
versions of torch that are known to have it.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from placewright.errors import CaptureError

KNOWN = "2.11 and 2.13"
"""Versions of torch on which the tests of capture have run."""


def _find(module: str, name: str) -> Any:
    """Return an object of torch, or say that this torch lacks it."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise CaptureError(
            f"torch {torch.__version__} has no {module}.{name}, which capture needs; torch {KNOWN} are known to work"
        ) from None


def fake_mode() -> Any:
    """Return a mode under which tensors have shapes, types and storages but no memory."""
    return _find("torch._subclasses.fake_tensor", "FakeTensorMode")(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory because it was made under a fake mode."""
    return isinstance(tensor, _find("torch._subclasses.fake_tensor", "FakeTensor"))


def mode_of(tensor: torch.Tensor) -> Any:
    """Return the mode that a fake tensor belongs to."""
    return tensor.fake_mode  # type: ignore[attr-defined]


def constant_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the real tensor whose values a fake one still knows, or None."""
    return getattr(tensor, "constant", None)


def active_fake_mode() -> Any:
    """Return the fake mode that is on now, or None."""
    return _find("torch._C", "_get_dispatch_mode")(_find("torch._C", "_TorchDispatchModeKey").FAKE)


def joint_graph(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], stack: contextlib.ExitStack
) -> torch.fx.GraphModule:
    """Return one graph of the forward and backward pass, whose inputs and outputs carry descriptors.

    What the model writes in place stays written in place: functionalisation is off, so the operations are those
    that eager execution runs.
    """
    export = _find("torch._functorch.aot_autograd", "aot_export_joint_with_descriptors")
    known = inspect.signature(export).parameters
    if "disable_functionalization" not in known:
        raise CaptureError(f"torch {torch.__version__} cannot keep writes in place; torch {KNOWN} are known to work")
    options: dict[str, Any] = {"disable_functionalization": True, "keep_inference_input_mutations": True}
    if "_disable_torch_fn_metadata_mode" in known:
        options["_disable_torch_fn_metadata_mode"] = True  # nothing here reads what it records
    joint = export(stack, module, args, kwargs, **options)
    graph: torch.fx.GraphModule = joint.graph_module
    return graph


def role(descriptor: object) -> tuple[str, str]:
    """Return what a descriptor of the joint graph says: a role, and the name or number that goes with it.

    Roles of inputs: parameter, buffer, input, tangent. Of outputs: output, gradient, mutation.
    """
    kind = type(descriptor).__name__
    if kind == "GradAOTOutput":
        of = role(descriptor.grad_of)  # type: ignore[attr-defined]
        return ("gradient" if of[0] == "parameter" else "none"), of[1]
    if kind in ("InputMutationAOTOutput", "MetadataMutationAOTOutput"):
        return "mutation", role(descriptor.mutated_input)[1]  # type: ignore[attr-defined]
    if kind == "TangentAOTInput":
        return "tangent", str(getattr(descriptor.output, "idx", 0))  # type: ignore[attr-defined]
    if kind in _PLAIN_ROLES:
        meaning, attribute = _PLAIN_ROLES[kind]
        return meaning, str(getattr(descriptor, attribute))
    return "none", ""


_PLAIN_ROLES = {
    "ParamAOTInput": ("parameter", "target"),
    "BufferAOTInput": ("buffer", "target"),
    "PlainAOTInput": ("input", "idx"),
    "PlainAOTOutput": ("output", "idx"),
}


@contextlib.contextmanager
def without_fake_mode() -> Iterator[None]:
    """Switch the active fake mode off."""
    with _find("torch._subclasses.fake_tensor", "unset_fake_temporarily")():
        yield


@contextlib.contextmanager
def without_prints_of_export() -> Iterator[None]:
    """Keep torch.export from printing the part of a graph that it has, to stderr, when data decide what comes next."""
    module = importlib.import_module("torch.export._trace")
    vars(module).setdefault("print", lambda *args, **kwargs: None)
    try:
        yield
    finally:
        vars(module).pop("print", None)


def without_fake_kernel(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return the operators that draft export finds to say nothing of what they return: `namespace.name.overload`."""
    with _removed_logs():
        program = torch.export.draft_export(module, args, kwargs)
    failures = getattr(getattr(program, "_report", None), "failures", ())
    found = [failure.data["op"] for failure in failures if "MISSING_FAKE_KERNEL" in str(failure.failure_type)]
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _removed_logs() -> Iterator[None]:
    """Let draft export write its log into a folder that is removed afterwards, and close it."""
    variable = _find("torch._logging._internal", "DTRACE_ENV_VAR")
    handler = _find("torch.export._draft_export", "CaptureStructuredTrace")
    before, enter, entered = os.environ.get(variable), handler.__enter__, []

    def remember(self: Any) -> Any:
        entered.append(self)
        return enter(self)

    with tempfile.TemporaryDirectory() as folder:
        os.environ[variable], handler.__enter__ = folder, remember
        try:
            yield
        finally:
            handler.__enter__ = enter
            os.environ.pop(variable) if before is None else os.environ.update({variable: before})
            for each in entered:
                each.close()


@contextlib.contextmanager
def fake_kernels(kernels: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Give operators, `namespace.name.overload`, these fake kernels for a while."""
    definition_of = _find("torch._library.custom_ops", "_maybe_get_opdef")
    with contextlib.ExitStack() as stack:
        for name, kernel in kernels.items():
            namespace, plain, _ = name.split(".")
            definition = definition_of(f"{namespace}::{plain}")
            if definition is not None:
                stack.callback(setattr, definition, "_abstract_fn", definition._abstract_fn)
                definition._abstract_fn = kernel
            else:
                library = _find("torch.library", "Library")(namespace, "FRAGMENT")
                stack.callback(library._destroy)
                torch.library.register_fake(f"{namespace}::{plain}", kernel, lib=library, allow_override=True)
        yield


@contextlib.contextmanager
def truncated_without_values() -> Iterator[None]:
    """Let `trunc_normal_` fill fake tensors: since torch 2.13 it draws until the values that it sees are in range."""
    module, name = importlib.import_module("torch.nn.init"), "_no_grad_trunc_normal_"
    kept = getattr(module, name, None)
    if kept is None:
        yield
        return

    def fill(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return tensor if is_fake(tensor) else kept(tensor, *args, **kwargs)

    setattr(module, name, fill)
    try:
        yield
    finally:
        setattr(module, name, kept)


@contextlib.contextmanager
def preserved_metadata() -> Iterator[None]:
    """Keep what `annotated` says with the nodes that are traced meanwhile."""
    with _find("torch.fx.traceback", "preserve_node_meta")():
        yield


def annotated(note: dict[str, Any]) -> Any:
    """Return a context that writes a note into the `custom` metadata of the nodes that are traced within."""
    return _find("torch.fx.traceback", "annotate")(note)


@contextlib.contextmanager
def marked_checkpoints(mark: Callable[[bool, Callable[..., Any] | None], Any]) -> Iterator[list[str]]:
    """Run every checkpointed function inline, within the context that `mark` returns; yields what else to know.

    torch.export inlines checkpoints without a trace, and the reentrant kind even without gradients. `mark` is given
    whether all of the function runs again, and the policy of selective checkpointing, if there is one.
    """
    module = importlib.import_module("torch.utils.checkpoint")
    names = ("_checkpoint_without_reentrant_generator", "CheckpointFunction")
    kept = [_find(module.__name__, name) for name in names]
    notes: list[str] = []

    def inline(*args: Any, **kwargs: Any) -> Iterator[None]:
        given = inspect.signature(kept[0]).bind(*args, **kwargs)
        given.apply_defaults()
        forward, _ = given.arguments["context_fn"]()
        policy = forward.policy_fn if isinstance(forward, _find(module.__name__, "_CachingTorchDispatchMode")) else None
        if policy is None and given.arguments["context_fn"] is not _find(module.__name__, "noop_context_fn"):
            notes.append(_CONTEXTS)
        stops = vars(module).get("_enable_checkpoint_early_stop")
        with mark(not (given.arguments.get("early_stop", True) if stops is None else stops), policy):
            yield  # the caller runs the function between the two halves of this generator

    class Inline:
        """Stands for the autograd function of reentrant checkpoints."""

        @staticmethod
        def apply(function: Callable[..., Any], preserve_random_state: bool, *args: Any) -> Any:
            del preserve_random_state
            with mark(True, None):
                return function(*args)

    for name, value in zip(names, (inline, Inline), strict=True):
        setattr(module, name, value)
    try:
        yield notes
    finally:
        for name, value in zip(names, kept, strict=True):
            setattr(module, name, value)


_CONTEXTS = (
    "a checkpoint has contexts (context_fn) that are not those of torch's create_selective_checkpoint_contexts; they "
    "are left out, and all that it wraps is computed again"
)


def is_saved(policy: Callable[..., Any], target: Any, args: Any, kwargs: Any, made: Any) -> bool:
    """Whether selective checkpointing saves what an operator made, by its policy; some operators it never asks for."""
    module = "torch.utils.checkpoint"
    if not isinstance(target, torch._ops.OpOverload) or target in _find(module, "SAC_IGNORED_OPS"):
        return False
    context = _find(module, "SelectiveCheckpointContext")
    more = {"op_output": made} if "op_output" in inspect.signature(context).parameters else {}
    answer = policy(context(is_recompute=False, **more), target, *args, **kwargs)
    return answer if isinstance(answer, bool) else answer.name in ("MUST_SAVE", "PREFER_SAVE")


def operators_named(names: Sequence[str]) -> list[Any]:
    """Return those of torch's own operators that this torch has, by their names."""
    return [getattr(torch.ops.aten, name).default for name in names if hasattr(torch.ops.aten, name)]


@contextlib.contextmanager
def autocast_on_cpu() -> Iterator[list[str]]:
    """Let autocast for other devices, which would do nothing here, be autocast on the CPU; yields which there were."""
    kept = torch.autocast.__init__
    devices: list[str] = []

    def begin(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type in ("cuda", "xpu", "mps", "hpu", "mtia") and enabled:
            devices.append(device_type)
            dtype, device_type = dtype or torch.get_autocast_dtype(device_type), "cpu"
        kept(self, device_type, dtype, enabled, cache_enabled)

    torch.autocast.__init__ = begin  # type: ignore[method-assign]
    try:
        yield devices
    finally:
        torch.autocast.__init__ = kept  # type: ignore[method-assign]


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """Switch MKL-DNN off, whose fused recurrent layers no other device has.

    torch.backends.mkldnn.flags does so too, but sets all other flags with it and warns where one does not apply.
    """
    before = _find("torch._C", "_get_mkldnn_enabled")()
    switch = _find("torch._C", "_set_mkldnn_enabled")
    switch(False)
    try:
        yield
    finally:
        switch(before)


def archive_writer(buffer: Any) -> Any:
    """Return a context that writes entries of a `.pt2` archive into a buffer, and ends it."""
    return _find("torch.export.pt2_archive._package", "PT2ArchiveWriter")(buffer)


def has_kernel(operator: Any) -> bool:
    """Whether an operator is one that computes, rather than one of TorchScript's own."""
    return bool(_find("torch._C", "_dispatch_has_kernel")(operator.name()))


def storage_id(tensor: torch.Tensor) -> int:
    """Return a number that two tensors share when they share bytes; valid while both are alive."""
    return int(tensor.untyped_storage()._cdata)


def place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common where they are the same elements in the same shape."""
    return storage_id(tensor), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype
