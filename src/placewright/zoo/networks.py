"""Every network of the zoo by name: what it is, how to build it, and what its step is by default.

Nothing heavy is imported before a network is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from placewright.errors import UnknownNameError

if TYPE_CHECKING:
    from placewright.zoo.layers import Built

BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Network:
    """A network of the zoo."""

    name: str
    about: str
    """One sentence: what it is and where it is from."""
    build: Callable[[int, bool], Built]
    """Takes the batch and whether the inputs are to hold targets; gives the module and its inputs, float32."""
    batch: int
    """Samples of a step, unless another number is asked for."""
    optimizer: str
    paper: str
    dtype: str = "float32"
    """Of parameters, activations and the optimiser's state."""


@dataclass(frozen=True)
class _Maker:
    """A function of a module of this package, called with options; the module is imported by the first call."""

    module: str
    function: str
    options: tuple[tuple[str, Any], ...]

    def __call__(self, batch: int, training: bool) -> Built:
        made = getattr(importlib.import_module(f"placewright.zoo.{self.module}"), self.function)
        built: Built = made(batch, training, **dict(self.options))
        return built


def _maker(where: str, **options: Any) -> _Maker:
    module, function = where.split(".")
    return _Maker(module, function, tuple(options.items()))


_INCEPTION = "Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision"
_RESNET = "He et al. 2016, Deep Residual Learning for Image Recognition"
_NASNET = "Zoph et al. 2018, Learning Transferable Architectures for Scalable Image Recognition"
_RNNLM = "Jozefowicz et al. 2016, Exploring the Limits of Language Modeling"
_NMT = "Wu et al. 2016, Google's Neural Machine Translation System; Bahdanau et al. 2015"
_GPT2 = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners"


def _inception(name: str, batch: int, about: str) -> Network:
    return Network(name, about, _maker("inception.inception"), batch, "adam", _INCEPTION)


def _resnet(layers: int, blocks: tuple[int, ...], about: str) -> Network:
    build = _maker("convolutional.resnet", blocks=blocks)
    return Network(f"resnet-{layers}", about, build, 32, "momentum", _RESNET)


def _nasnet(kind: str, about: str, **options: Any) -> Network:
    return Network(f"nasnet-a-{kind}", about, _maker("nasnet.nasnet", **options), 32, "adam", _NASNET)


def _rnnlm(name: str, layers: int, about: str) -> Network:
    return Network(name, about, _maker("recurrent.rnnlm", layers=layers), 64, "sgd", _RNNLM)


def _nmt(layers: int, who: str) -> Network:
    about = (
        f"Translation with attention, {layers} LSTM layers of 1,024 units on either side, unrolled over 40 words; "
        f"placed by {who}."
    )
    return Network(f"nmt-{layers}", about, _maker("recurrent.nmt", layers=layers), 64, "adam", _NMT)


def _gpt2(name: str, width: int, layers: int, heads: int) -> Network:
    about = f"The GPT-2 language model of {layers} layers of width {width:,} over 1,024 tokens."
    build = _maker("gpt.gpt2", width=width, layers=layers, heads=heads)
    return Network(name, about, build, 4, "adamw", _GPT2)


def _llama(name: str, paper: str, **sizes: int) -> Network:
    about = f"A Llama-like language model of {sizes['layers']} layers of width {sizes['width']:,}; {paper}."
    return Network(name, about, _maker("llama.llama", **sizes), 1, "adamw", paper, BFLOAT16)


_ALL = (
    _inception("inception-v3", 32, "Inception-v3 on ImageNet at the batch of ColocRL and Post."),
    _inception("inception-v3-b1", 1, "Inception-v3 on ImageNet at batch 1, which fits the times that HDP reports."),
    _resnet(50, (3, 4, 6, 3), "The residual network of 50 layers on ImageNet."),
    _resnet(152, (3, 8, 36, 3), "The residual network of 152 layers on ImageNet; placed by HDP."),
    Network(
        "vgg-16",
        "The network of 13 convolutions and 3 linear layers on ImageNet, configuration D of its paper.",
        _maker("convolutional.vgg"),
        32,
        "momentum",
        "Simonyan and Zisserman 2015, Very Deep Convolutional Networks for Large-Scale Image Recognition",
    ),
    _nasnet("mobile", "NASNet-A (4 @ 1056) on ImageNet at 224x224.", filters=44, repeats=4, stem=32),
    _nasnet(
        "large", "NASNet-A (6 @ 4032) on ImageNet at 331x331.", filters=168, repeats=6, stem=96, skip=True, size=331
    ),
    _rnnlm("rnnlm", 2, "A language model of 2 LSTM layers of 2,048 units over 40 words; placed by ColocRL and HDP."),
    _rnnlm(
        "rnnlm-4", 4, "A language model of 4 LSTM layers of 2,048 units over 40 words; placed by Spotlight and Post."
    ),
    _nmt(2, "ColocRL and HDP"),
    _nmt(4, "HDP"),
    _nmt(8, "HDP and Spotlight"),
    Network(
        "spotlight-cifar10",
        "The small convolutional network for CIFAR-10 that Spotlight trains, read as TensorFlow's own example.",
        _maker("convolutional.cifar10"),
        128,
        "sgd",
        "Gao et al. 2018, Spotlight: Optimizing Device Placement for Training Deep Neural Networks",
    ),
    Network(
        "bert-large",
        "BERT-large over 512 tokens with both heads of its pre-training.",
        _maker("bert.bert"),
        4,
        "adamw",
        "Devlin et al. 2019, BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    ),
    _gpt2("gpt2", 768, 12, 12),
    _gpt2("gpt2-medium", 1024, 24, 16),
    _gpt2("gpt2-large", 1280, 36, 20),
    _gpt2("gpt2-xl", 1600, 48, 25),
    _llama(
        "llama-1b",
        "Zhang et al. 2024, TinyLlama: An Open-Source Small Language Model",
        width=2048,
        layers=22,
        heads=32,
        key_heads=4,
        hidden=5632,
    ),
    _llama(
        "llama-7b",
        "Touvron et al. 2023, LLaMA: Open and Efficient Foundation Language Models",
        width=4096,
        layers=32,
        heads=32,
        key_heads=32,
        hidden=11_008,
    ),
    _llama(
        "llama-70b",
        "Touvron et al. 2023, Llama 2: Open Foundation and Fine-Tuned Chat Models",
        width=8192,
        layers=80,
        heads=64,
        key_heads=8,
        hidden=28_672,
        steps=4096,
    ),
    Network(
        "mixtral-8x7b",
        "A Mixtral-like mixture of eight experts over 4,096 tokens, each expert with room for a fixed number of them.",
        _maker("mixtral.mixtral"),
        1,
        "adamw",
        "Jiang et al. 2024, Mixtral of Experts",
        BFLOAT16,
    ),
    Network(
        "unet-sd1",
        "The U-Net of Stable Diffusion 1, which guesses the noise in latents of 64x64 beside a text of 77 tokens.",
        _maker("unet.unet"),
        4,
        "adamw",
        "Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models",
        BFLOAT16,
    ),
    Network(
        "vit-large",
        "ViT-L/16, a transformer over the 196 patches of an image of 224x224.",
        _maker("vit.vit"),
        32,
        "adamw",
        "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words",
    ),
)
NETWORKS: Mapping[str, Network] = MappingProxyType({each.name: each for each in _ALL})


def names() -> tuple[str, ...]:
    """The networks, the papers' first; members of families are not among them."""
    return tuple(NETWORKS)


def network(name: str) -> Network:
    """The network of that name."""
    if name not in NETWORKS:
        raise UnknownNameError("network", str(name), NETWORKS)
    return NETWORKS[name]
