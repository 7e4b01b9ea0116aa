"""Networks of transformers folders, built from `config.json` alone: no weights, no network, no foreign code."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from placewright.capture.fake import built
from placewright.capture.folder_inputs import TASKS, inputs_of, task_of
from placewright.errors import FileError, InputError, MissingExtraError, UnknownNameError
from placewright.files import parse_json, read_text

_CLASS = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")
_DTYPES = ("float32", "float16", "bfloat16", "float64")

_IMPLEMENTATIONS = frozenset(
    {
        "attn_implementation",
        "_attn_implementation",
        "_attn_implementation_internal",
        "experts_implementation",
        "_experts_implementation",
        "_experts_implementation_internal",
        "auto_map",
    }
)
"""Fields that name code to load. Left out, transformers chooses attention by `scaled_dot_product_attention`
where the class has it, and experts by one grouped product, whose shapes do not depend on the routing."""

_FORCED: dict[str, Any] = {
    "use_cache": False,
    "use_pretrained_backbone": False,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "torchscript": False,
    "return_dict": True,
}
"""Fields that are set wherever they occur. A layer left out at random would be another graph in every step."""
_FORCED_IN_TRAINING: dict[str, Any] = {"mask_time_prob": 0.0, "mask_feature_prob": 0.0}
"""Also set for training: how many frames of sound are masked is drawn anew in every step, and so are sizes."""


def from_folder(
    path: str | os.PathLike[str],
    *,
    batch: int = 1,
    length: int | None = None,
    task: str | None = None,
    training: bool = False,
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """The model of a transformers folder, with random weights, and the inputs of one pass: (model, args, kwargs).

    The class is the one that `architectures` names; `task` (see `TASKS`) chooses another, and without either it
    is the bare model of that type. With `training` the labels are among the inputs, so that the pass returns
    a loss. `length` counts tokens of text, samples or frames of sound, or is the side of an image in pixels;
    without it, 512 tokens or what the model allows, ten seconds of sound, and the image size of the model.
    Layers and frames of sound that a configuration leaves out at random are kept.
    Nothing is kept from pass to pass, so a pass of a decoder reads the whole text. Under a fake mode the model
    takes no memory.
    """
    if batch < 1:
        raise InputError(f"batch is {batch}; 1 or more is allowed")
    if length is not None and length < 1:
        raise InputError(f"length is {length}; 1 or more is allowed")
    if task is not None and task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    file = Path(path) / "config.json"
    document = _read(file)
    with _offline():
        config = _config(document, file, _FORCED | (_FORCED_IN_TRAINING if training else {}))
        chosen = _model_class(config, document, task, file)
        model = _build(chosen, config, file)
    model.train(training)
    kwargs = inputs_of(model, task or task_of(chosen.__name__), batch=batch, length=length, training=training)
    return model, (), kwargs


def _read(file: Path) -> dict[str, Any]:
    """Return the object in a `config.json`, without the fields that name code."""
    if not file.parent.is_dir():
        what = "is not a folder. A transformers folder holds a config.json; nothing is downloaded"
        raise FileError(file.parent, "", what)
    if not file.exists():
        raise FileError(file.parent, "", "holds no config.json; a transformers folder has one")
    document = parse_json(read_text(file), file)
    if not isinstance(document, dict):
        raise FileError(file, "", "expected a JSON object")
    if document.get("quantization_config"):
        hint = "remove the field to plan for the weights as they were before quantisation"
        raise FileError(file, "quantization_config", f"quantised weights cannot be built from a config alone; {hint}")
    return document


def _set(value: Any, forced: dict[str, Any]) -> Any:
    """Return a document with the forced fields in place and nothing that names code, at any depth."""
    if isinstance(value, dict):
        kept = {key: _set(inner, forced) for key, inner in value.items() if key not in _IMPLEMENTATIONS}
        return kept | {key: one for key, one in forced.items() if key in kept}
    return [_set(inner, forced) for inner in value] if isinstance(value, list) else value


def _config(document: dict[str, Any], file: Path, forced: dict[str, Any]) -> Any:
    """Return the transformers configuration that a document describes, with these fields forced."""
    try:
        from transformers import PreTrainedConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        raise MissingExtraError("reading a transformers folder", "hf") from None
    kind = document.get("model_type")
    if not isinstance(kind, str):
        raise FileError(file, "model_type", "is missing; it names the kind of model, such as 'llama'")
    if kind not in CONFIG_MAPPING:
        raise FileError(file, "model_type", _unknown_type(kind, document, CONFIG_MAPPING))
    decode = getattr(PreTrainedConfig, "_decode_special_floats", lambda value: value)
    try:
        config = CONFIG_MAPPING[kind].from_dict(decode(_set(document, forced)))
    except Exception as error:  # the configuration classes raise whatever their checks raise
        raise FileError(file, "", f"transformers refuses it as a {kind} configuration: {_line(error)}") from error
    _check_dtype(config, file)
    _force(config, forced)
    return config


def _unknown_type(kind: str, document: dict[str, Any], known: Any) -> str:
    """Say that no class is known for a model type, and why."""
    if document.get("auto_map"):
        return f"{kind[:80]!r} comes with code of its own, which is never run; only transformers' own models are built"
    close = difflib.get_close_matches(kind[:80], list(known), n=3)
    guess = f"did you mean {' or '.join(map(repr, close))}?" if close else "a newer version may know it"
    return f"the installed transformers has no model type {kind[:80]!r}; {guess}"


def _check_dtype(config: Any, file: Path) -> None:
    """Refuse a type in which no model can be built."""
    dtype = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    if dtype not in _DTYPES:
        raise FileError(file, "dtype", f"{dtype[:80]!r} is not one of {', '.join(_DTYPES)}")


def _force(config: Any, forced: dict[str, Any]) -> None:
    """Set the forced fields that the classes' defaults brought in, in configurations within too."""
    for key, value in forced.items():
        if key != "return_dict" and getattr(config, key, value) != value:
            setattr(config, key, value)
    for inner in vars(config).values():
        if hasattr(inner, "model_type") and hasattr(inner, "to_dict"):
            _force(inner, forced)


def _model_class(config: Any, document: dict[str, Any], task: str | None, file: Path) -> Any:
    """Return the class to build: of the task, of `architectures`, or the bare model."""
    from transformers.models.auto import modeling_auto

    named = document.get("architectures")
    if task is None and named:
        return _named_class(named, config, file)
    mapping = getattr(modeling_auto, TASKS[task] if task else "MODEL_MAPPING", {})
    if type(config) not in mapping:
        raise InputError(f"{file}: transformers has no model of type {config.model_type!r} for the task {task!r}")
    chosen = mapping[type(config)]
    return chosen[0] if isinstance(chosen, tuple | list) else chosen


def _named_class(named: Any, config: Any, file: Path) -> Any:
    """Return the class that `architectures` names first."""
    import transformers

    name = named[0] if isinstance(named, list) else named
    if not isinstance(name, str) or not _CLASS.fullmatch(name):
        raise FileError(file, "architectures", "expected the names of classes")
    found: Any = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        reason = f"{name!r} is no model class of transformers; code that comes with a folder is never run"
        raise FileError(file, "architectures", f"{reason}. Give a task to build another class of this model type.")
    expected = getattr(found, "config_class", None) or type(config)
    if not isinstance(config, expected):
        reason = f"{name!r} is built from a {expected.__name__}"
        raise FileError(file, "architectures", f"{reason}, but model_type {config.model_type!r} is another")
    return found


def _build(chosen: Any, config: Any, file: Path) -> torch.nn.Module:
    """Return the module, its weights random (or fake) and in the type that the configuration names."""
    try:
        model = built(lambda: chosen._from_config(config))
    except MemoryError:
        raise InputError(f"{file}: {chosen.__name__} does not fit into memory; build it under fake tensors") from None
    except Exception as error:  # a class of transformers may raise anything on sizes that do not fit together
        raise FileError(file, "", f"{chosen.__name__} cannot be built from it: {_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise FileError(file, "", f"{chosen.__name__} is not a PyTorch module")
    return model


def _line(error: BaseException) -> str:
    """Return what an error says, in one line of at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Nothing is fetched from the hub inside this block, whatever a configuration asks for, and nothing is logged."""
    try:
        from huggingface_hub import constants
        from transformers.utils import logging
    except ImportError:
        raise MissingExtraError("reading a transformers folder", "hf") from None
    before, verbosity = constants.HF_HUB_OFFLINE, logging.get_verbosity()
    constants.HF_HUB_OFFLINE = True
    logging.set_verbosity_error()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
        logging.set_verbosity(verbosity)
