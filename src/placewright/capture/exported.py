"""Programs that torch.export has saved (`.pt2`): the graph of their inference pass or of a training step.

Nothing in the file is run, unpickled or imported, and no weight is read: exported_file.py has the reasons.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import time
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from placewright.capture import Captured, captured_from, torch_private
from placewright.capture.arguments import chosen_optimizer
from placewright.capture.exported_file import STORAGE, Exported, read_program
from placewright.capture.fake import lent_shapes
from placewright.capture.faults import data_dependent, is_data_dependent, one_line
from placewright.capture.loss import is_loss
from placewright.capture.scopes import paths_of_program
from placewright.capture.step import PREFIX
from placewright.capture.trace import Traced, described, joint_of_module, quiet
from placewright.errors import CaptureError, FileError, PlacewrightError


def read_exported(
    path: str | os.PathLike[str],
    *,
    optimizer: str | None = None,
    update_order: str = "early",
    name: str | None = None,
) -> Captured:
    """The captured step of the program in a `.pt2` file: a training step with this optimiser, or an inference pass.

    The loss is the output called `loss`, else the first tensor, where that is a scalar. Sizes that the program
    leaves open are those of the inputs that it was exported with. What is trained is what asked for gradients when
    the program was saved, and marks of checkpointing are not in such files, so nothing is recomputed.
    """
    started = time.perf_counter()
    chosen = chosen_optimizer(optimizer, update_order)
    saved = read_program(path)
    try:
        with quiet():
            traced = _traced(_loaded(saved), saved.loss, training=chosen is not None)
    except PlacewrightError:
        raise
    except Exception as error:  # whatever torch raises over a program that it wrote, or did not
        if is_data_dependent(error):
            raise data_dependent(error) from error
        raise FileError(path, "", f"torch {torch.__version__} cannot take this program: {one_line(error)}") from error
    return captured_from(traced, name or _name(path), chosen, update_order, started)


def _loaded(saved: Exported) -> torch.export.ExportedProgram:
    """Return the program as torch loads it from an archive that holds what was checked and nothing else."""
    buffer = io.BytesIO()
    with torch_private.archive_writer(buffer) as archive:
        for kind, payload in (("weights", saved.weights), ("constants", saved.constants)):
            for record in dict.fromkeys(entry["path_name"] for entry in payload["config"].values()):
                archive.write_bytes(f"data/{kind}/{record}", b"")
            archive.write_string(f"data/{kind}/model_{kind}_config.json", json.dumps(payload))
        archive.write_string("models/model.json", json.dumps(saved.model))
        archive.write_bytes("data/sample_inputs/model.pt", b"")
    buffer.seek(0)
    return torch.export.load(buffer)


def _traced(program: torch.export.ExportedProgram, loss: int | None, *, training: bool) -> Traced:
    """Return the joint graph of a program, or the graph of its inference pass."""
    module = program.module(check_guards=False)
    module._forward_pre_hooks.clear()  # they compare inputs with what was exported, which these are
    module.graph.set_codegen(torch.fx.graph.CodeGen())
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    inputs = tuple(_example(node) for node in placeholders)
    has_loss = training and _put_loss_first(module, loss)
    module.recompile()
    _prefix_scopes(module)
    for name in (each for each in program.constants if not each.startswith(STORAGE)):
        _hold(module, name)
    with lent_shapes(module, inputs) as (mode, fake_inputs):
        held = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        order = [spec.target for spec in program.graph_signature.input_specs if spec.target in held]
        stand_ins = {name: held[name] for name in dict.fromkeys([*order, *held]) if not name.startswith(STORAGE)}
        scopes = paths_of_program(module.graph, stand_ins)
        if not training:
            for parameter in module.parameters():
                parameter.requires_grad_(False)
        with mode, contextlib.nullcontext() if training else torch.no_grad():
            joint = joint_of_module(module, fake_inputs, {})
    _prefix_roles(joint)
    traced = described(joint, "exported program", (), [node.name for node in placeholders], has_loss, stand_ins)
    return replace(traced, scopes=scopes)


def _example(placeholder: Node) -> Any:
    """Return an input as the program had it: a tensor without memory, or a plain value."""
    value = placeholder.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value
    shape, strides = ([_size(size, placeholder) for size in sizes] for sizes in (value.shape, value.stride()))
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")


def _hold(module: torch.nn.Module, name: str) -> None:
    """Let a constant of the program, a plain attribute of the module, be a buffer, which can lend its shape."""
    path, _, attribute = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(value := owner.__dict__.get(attribute), torch.Tensor):
        del owner.__dict__[attribute]
        owner.register_buffer(attribute, value, persistent=False)


def _size(size: Any, placeholder: Node) -> int:
    """Return a size; one that the program leaves open is what it was when the program was exported."""
    found = size if isinstance(size, int) else size.node.hint
    if not isinstance(found, int):
        raise CaptureError(f"the size of input {placeholder.name!r} is not known; export the program with fixed sizes")
    return found


def _put_loss_first(module: GraphModule, place: int | None) -> bool:
    """Let the loss be the first output, and nothing else need a gradient; whether there is a loss.

    `place` is that of the output called `loss`.
    """
    output = module.graph.output_node()
    values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    tensors = [value for value in values if isinstance(_tensor(value), torch.Tensor)]
    named = place is not None and values[place] in tensors
    loss = values[place] if named and place is not None else next(iter(tensors), None)
    if not is_loss(_tensor(loss), named=named):
        return False
    rest = [value for value in values if value is not loss]
    with module.graph.inserting_before(output):
        for k, value in enumerate(rest):
            if isinstance(value, Node):
                rest[k] = module.graph.call_function(torch.ops.aten.detach.default, (value,))
                rest[k].meta = dict(value.meta)
    output.args = ((loss, *rest),)
    return True


def _tensor(value: Any) -> Any:
    """Return the tensor that stands for an output; None for a plain value."""
    return value.meta.get("val") if isinstance(value, Node) else None


def _prefix_scopes(module: GraphModule) -> None:
    """Put the paths of modules below the prefix that a captured step has."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            stack = node.meta.get("nn_module_stack")
            if stack:
                node.meta["nn_module_stack"] = {
                    key: (f"{PREFIX}{path}" if path else PREFIX[:-1], *rest) for key, (path, *rest) in stack.items()
                }


def _prefix_roles(joint: GraphModule) -> None:
    """Put the names of parameters and buffers below that prefix."""

    def named(kind: str, name: str) -> tuple[str, str]:
        return kind, f"{PREFIX}{name}" if kind in ("parameter", "buffer", "gradient") else name

    for node in joint.graph.nodes:
        if node.op == "placeholder":
            node.meta["role"] = named(*torch_private.role(node.meta.get("desc")))
    output = joint.graph.output_node()
    output.meta["roles"] = [named(*torch_private.role(entry)) for entry in output.meta["desc"]]


def _name(path: str | os.PathLike[str]) -> str:
    """Return a name for the graph of a file: the file's own, without its ending."""
    name = re.sub(r"\.pt2$", "", os.path.basename(os.fsdecode(path)), flags=re.IGNORECASE)
    return name if name.isprintable() and 0 < len(name) <= 200 else "program"
