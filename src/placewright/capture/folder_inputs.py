"""The inputs of one pass of a transformers model: which its class takes, their shapes, and its labels.

Shape legend: B samples, L tokens, C channels, H and W pixels, T samples or frames of sound, K choices.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from placewright.errors import InputError

TASKS = {
    "text-generation": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "text2text-generation": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "automatic-speech-recognition": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING",
    "ctc": "MODEL_FOR_CTC_MAPPING",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "fill-mask": "MODEL_FOR_MASKED_LM_MAPPING",
    "text-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
    "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
    "multiple-choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
    "semantic-segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
    "zero-shot-image-classification": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING",
    "feature-extraction": "MODEL_MAPPING",
}
"""Tasks by the names that transformers' pipelines give them, and the table that holds each one's classes."""

_TOKENS = 512
_SOUND = 160_000
"""Ten seconds of sound at 16 kHz."""
_FRAMES = 1000
"""Ten seconds in frames of 10 ms."""
_PIXELS = 224
_CHOICES = 4
_LIMITS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_target_positions")


def task_of(name: str) -> str | None:
    """Return the task that a class of this name is for; None where transformers lists it under none."""
    from transformers.models.auto import modeling_auto

    for task, table in TASKS.items():
        names = getattr(modeling_auto, f"{table}_NAMES", {}).values()
        if any(name == one or (isinstance(one, tuple | list) and name in one) for one in names):
            return task
    return None


def inputs_of(
    model: Any, task: str | None, *, batch: int, length: int | None, training: bool
) -> dict[str, torch.Tensor | bool]:
    """Return the keyword arguments of one pass; with `training` those of which the class makes its loss."""
    maker = _Maker(model, model.config, task, batch, length)
    kwargs: dict[str, torch.Tensor | bool] = {}
    for name, parameter in maker.parameters.items():
        if name in _MAKERS and maker.wants(name, parameter.default is inspect.Parameter.empty):
            kwargs[name] = _MAKERS[name](maker)
    missing = [
        name
        for name, parameter in maker.parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind in _NAMED and name not in kwargs
    ]
    if missing or not kwargs:
        what = ", ".join(missing) or str(model.main_input_name)
        raise InputError(f"no inputs are known for {type(model).__name__}, which takes {what}; {_OWN}")
    if training:
        kwargs |= _labels(maker, kwargs)
    return kwargs


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OWN = "build it yourself and capture it with inputs of your own"


@dataclass(frozen=True, slots=True)
class _Maker:
    """What the inputs of a model depend on."""

    model: Any
    config: Any
    task: str | None
    batch: int
    length: int | None

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters of the model's pass, in order."""
        return dict(inspect.signature(self.model.forward).parameters)

    @property
    def text(self) -> Any:
        """The configuration of the part that reads text, or the whole one."""
        get = getattr(self.config, "get_text_config", None)
        return get(encoder=True) if get is not None else self.config

    @property
    def writer(self) -> Any:
        """The configuration of the part that writes text, or the whole one."""
        get = getattr(self.config, "get_text_config", None)
        return get(decoder=True) if get is not None else self.config

    def wants(self, name: str, required: bool) -> bool:
        """Whether an input is to be given: required ones, the main one, and those of each kind that it takes."""
        kinds = getattr(self.model, "input_modalities", None) or ()
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        if required or name == self.model.main_input_name:
            return True
        if name == "input_ids":
            return "text" in kinds and "decoder_input_ids" not in self.parameters
        if name == "decoder_input_ids":
            return True
        return name == "pixel_values" and "image" in kinds

    def tokens(self, config: Any, length: int | None) -> int:
        """Return how many tokens to give, by the length asked for and the positions that there are."""
        given = [getattr(config, key, None) for key in _LIMITS]
        limits = [(key, one) for key, one in zip(_LIMITS, given, strict=True) if isinstance(one, int) and one > 0]
        if not limits:
            return length or _TOKENS
        key, limit = limits[0]
        if length is not None and length > limit:
            written = (getattr(config, "attribute_map", None) or {}).get(key, key)
            raise InputError(f"length is {length}; config.json allows {limit} by {written}")
        # RoBERTa counts positions from 2, so 514 of them hold 512 tokens
        return length or min(_TOKENS, limit - limit % 8 if limit > 8 else limit)

    def ids(self, config: Any, *shape: int) -> torch.Tensor:
        """Return token numbers of this shape, the same in every call, none of them among the first few."""
        count = int(torch.Size(shape).numel())
        vocabulary = int(getattr(config, "vocab_size", 0) or 32)
        return (torch.arange(count) % max(1, vocabulary - 8) + min(8, vocabulary - 1)).reshape(shape)

    def pixels(self) -> tuple[int, int]:
        """Return height and width of an image in pixels."""
        for config in (getattr(self.config, "vision_config", None), getattr(self.config, "encoder", None), self.config):
            size = getattr(config, "image_size", None)
            if isinstance(size, dict):
                size = (size.get("height"), size.get("width"))
            if isinstance(size, int):
                size = (size, size)
            if isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(one, int) for one in size):
                return size[0], size[1]
        side = (self.length or _PIXELS) if self.model.main_input_name == "pixel_values" else _PIXELS
        return side, side

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's weights, in which it takes pixels and sound."""
        return next((one.dtype for one in self.model.parameters() if one.is_floating_point()), torch.float32)


def _input_ids(maker: _Maker) -> torch.Tensor:
    """Token numbers (B, L), or (B, K, L) for a choice; the places of an image's tokens hold its own number."""
    config = maker.text
    own = maker.length if maker.model.main_input_name == "input_ids" else None
    length = maker.tokens(config, own)
    if maker.task == "multiple-choice":
        return maker.ids(config, maker.batch, _CHOICES, length)
    ids = maker.ids(config, maker.batch, length)
    number = getattr(maker.config, "image_token_id", None) or getattr(maker.config, "image_token_index", None)
    if number is None or "pixel_values" not in maker.parameters:
        return ids
    image = _image_tokens(maker)
    if image >= length:
        raise InputError(f"length is {length}; an image takes {image} tokens, so give a length above that")
    return torch.cat([torch.full((maker.batch, image), int(number)), ids[:, image:]], dim=1)


def _image_tokens(maker: _Maker) -> int:
    """Return how many tokens of the text an image takes the place of."""
    for key in ("mm_tokens_per_image", "image_seq_length", "image_seq_len"):
        count = getattr(maker.config, key, None)
        if isinstance(count, int) and count > 0:
            return count
    vision = getattr(maker.config, "vision_config", None)
    patch = getattr(vision, "patch_size", None)
    if not isinstance(patch, int) or patch < 1:
        raise InputError(f"how many tokens an image takes in {type(maker.model).__name__} is not known; {_OWN}")
    height, width = maker.pixels()
    return (height // patch) * (width // patch)


def _decoder_input_ids(maker: _Maker) -> torch.Tensor:
    """Token numbers (B, L) of what the decoder has written."""
    own = maker.length if maker.model.main_input_name == "input_ids" else None
    return maker.ids(maker.writer, maker.batch, maker.tokens(maker.writer, own))


def _pixel_values(maker: _Maker) -> torch.Tensor:
    """An image for every sample (B, C, H, W)."""
    vision = getattr(maker.config, "vision_config", None) or getattr(maker.config, "encoder", None) or maker.config
    channels = getattr(vision, "num_channels", None)
    if "image_grid_thw" in maker.parameters:
        raise InputError(f"{type(maker.model).__name__} cuts images by grids that are values; {_OWN}")
    return torch.zeros(maker.batch, channels if isinstance(channels, int) else 3, *maker.pixels(), dtype=maker.dtype)


def _sound(maker: _Maker) -> torch.Tensor:
    """Sound as samples (B, T), or as frames in the order that the class reads them."""
    config = maker.config
    bands = getattr(config, "num_mel_bins", None)
    positions = getattr(config, "max_source_positions", None)
    if maker.model.main_input_name == "input_features":
        if hasattr(config, "input_feat_per_channel"):
            bands = config.input_feat_per_channel * config.input_channels
            return torch.zeros(maker.batch, maker.length or _FRAMES, bands, dtype=maker.dtype)
        if isinstance(bands, int) and isinstance(positions, int):  # halved by a convolution, and always padded so
            return torch.zeros(maker.batch, bands, 2 * positions, dtype=maker.dtype)
        if isinstance(width := getattr(config, "feature_projection_input_dim", None), int):
            return torch.zeros(maker.batch, maker.length or _FRAMES, width, dtype=maker.dtype)
        raise InputError(f"the frames that {type(maker.model).__name__} reads are not known; {_OWN}")
    if isinstance(bands, int) and isinstance(frames := getattr(config, "max_length", None), int):
        return torch.zeros(maker.batch, frames, bands, dtype=maker.dtype)
    return torch.zeros(maker.batch, maker.length or _SOUND, dtype=maker.dtype)


def _mask(maker: _Maker) -> torch.Tensor:
    """A mask that leaves nothing out (B, L)."""
    return torch.ones_like(_input_ids(maker))


def _boxes(maker: _Maker) -> torch.Tensor:
    """The box of each token on its page (B, L, 4)."""
    return torch.zeros(*_input_ids(maker).shape, 4, dtype=torch.int64)


_MAKERS: dict[str, Callable[[_Maker], torch.Tensor]] = {
    "input_ids": _input_ids,
    "decoder_input_ids": _decoder_input_ids,
    "pixel_values": _pixel_values,
    "input_values": _sound,
    "input_features": _sound,
    "attention_mask": _mask,
    "bbox": _boxes,
}


def _labels(maker: _Maker, kwargs: dict[str, Any]) -> dict[str, torch.Tensor | bool]:
    """Return what a class makes its loss of, and take from `kwargs` what it then makes itself."""
    name, task, params = type(maker.model).__name__, maker.task, maker.parameters
    if task == "zero-shot-image-classification" or (task == "feature-extraction" and "return_loss" in params):
        return {"return_loss": True}
    if task == "question-answering" and "start_positions" in params:
        where = torch.arange(maker.batch)
        return {"start_positions": where, "end_positions": where + 1}
    if task == "pretraining" and "labels" not in params and "pixel_values" in kwargs:
        return {}  # a masked autoencoder: the image is its own label
    if "labels" not in params or task is None:
        raise InputError(f"{name} makes no loss of labels that are known; give a task that has one, or a loss")
    if task in {"text2text-generation", "automatic-speech-recognition"}:
        return {"labels": kwargs.pop("decoder_input_ids")}  # shifted to the right by the class itself
    return _LABELS.get(task, _class_labels)(maker, kwargs)


def _copied(maker: _Maker, kwargs: dict[str, Any]) -> dict[str, torch.Tensor | bool]:
    """The tokens themselves (B, L)."""
    del maker
    return {"labels": kwargs["input_ids"]}


def _pretraining_labels(maker: _Maker, kwargs: dict[str, Any]) -> dict[str, torch.Tensor | bool]:
    """A label for every token (B, L), and for every pair of sentences (B) where the class has a head for them."""
    params = maker.parameters
    following = "next_sentence_label" if "next_sentence_label" in params else "sentence_order_label"
    if following not in params:
        return {"labels": torch.zeros_like(kwargs["input_ids"])}
    return {"labels": kwargs["input_ids"], following: torch.zeros(maker.batch, dtype=torch.int64)}


def _class_labels(maker: _Maker, kwargs: dict[str, Any]) -> dict[str, torch.Tensor | bool]:
    """A class for every sample (B); a number where there is one label (B); numbers by the problem type (B, labels)."""
    del kwargs
    classes = max(1, int(getattr(maker.config, "num_labels", 2) or 2))
    if maker.task == "multiple-choice":
        classes = _CHOICES
    elif getattr(maker.config, "problem_type", None) in _OF_NUMBERS and _heeds_problem(maker.model):
        return {"labels": torch.zeros(maker.batch, classes, dtype=maker.dtype)}
    if classes > 1:
        return {"labels": torch.arange(maker.batch) % classes}
    return {"labels": torch.zeros(maker.batch, dtype=maker.dtype)}


_OF_NUMBERS = ("regression", "multi_label_classification")
"""The problem types whose labels are numbers, as many for each sample as there are labels."""


def _heeds_problem(model: Any) -> bool:
    """Whether a class makes its loss by the problem type: by itself, or by the function of transformers for it."""
    return not {"problem_type", "loss_function"}.isdisjoint(inspect.unwrap(type(model).forward).__code__.co_names)


_Labels = Callable[[_Maker, dict[str, Any]], dict[str, torch.Tensor | bool]]
_LABELS: dict[str, _Labels] = {
    **dict.fromkeys(("text-generation", "fill-mask", "image-text-to-text"), _copied),
    "ctc": lambda maker, kwargs: {"labels": maker.ids(maker.config, maker.batch, 32)},
    "pretraining": _pretraining_labels,
    "semantic-segmentation": lambda maker, kwargs: {
        "labels": torch.zeros(maker.batch, *kwargs["pixel_values"].shape[-2:], dtype=torch.int64)
    },
    "token-classification": lambda maker, kwargs: {"labels": torch.zeros_like(kwargs["input_ids"])},
}
