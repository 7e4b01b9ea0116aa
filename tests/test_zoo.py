"""The zoo's register: names, published parameter counts, what a step is by default, and graphs of whole steps."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch

from placewright import zoo
from placewright.capture.fake import fake_tensors
from placewright.capture.optimizers import OPTIMIZERS
from placewright.errors import InputError, UnknownNameError
from placewright.graph import FORWARD, PARAMETER, UPDATE
from placewright.zoo.inception import inception

PUBLISHED = {
    # torchvision's models, Keras' NASNet (trainable), transformers' GPT-2 and BERT, and the makers' checkpoints.
    "inception-v3": 23_834_568,
    "inception-v3-b1": 23_834_568,
    "resnet-50": 25_557_032,
    "resnet-152": 60_192_808,
    "vgg-16": 138_357_544,
    "nasnet-a-mobile": 5_289_978,
    "nasnet-a-large": 88_753_150,
    "bert-large": 335_141_888 + 1024 * 1024 + 3 * 1024 + 30_522 + 2 * 1024 + 2,  # the encoder, and both heads
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
    "llama-70b": 68_976_648_192,
    "mixtral-8x7b": 46_702_792_704,
    "unet-sd1": 859_520_964,
    "vit-large": 304_326_632,
}
LSTM_2048 = 2048 * 8192 * 2 + 2 * 8192
LSTM_1024 = 1024 * 4096 * 2 + 2 * 4096
DERIVED = {
    "rnnlm": 10_000 * 2048 + 2 * LSTM_2048 + 2048 * 10_000 + 10_000,
    "rnnlm-4": 10_000 * 2048 + 4 * LSTM_2048 + 2048 * 10_000 + 10_000,
    **{
        # embeddings; layers on both sides; the context into the decoder; attention; softmax
        f"nmt-{n}": 2 * 32_000 * 1024
        + 2 * n * LSTM_1024
        + 1024 * 4096
        + (2 * 1024 * 1024 + 1024 + 2048 * 1024)
        + 1024 * 32_000
        + 32_000
        for n in (2, 4, 8)
    },
    "spotlight-cifar10": 75 * 64 + 64 + 1600 * 64 + 64 + 2304 * 384 + 384 + 384 * 192 + 192 + 192 * 10 + 10,
}


@pytest.fixture(scope="module")
def built():
    """Every network with its inputs for training, without memory."""
    with fake_tensors():
        return {name: zoo.build(name) for name in zoo.names()}


def test_every_network_has_a_known_size():
    """No network is without a parameter count to hold it to."""
    assert set(PUBLISHED) | set(DERIVED) == set(zoo.names())


@pytest.mark.parametrize("name", zoo.names())
def test_parameters_are_as_many_as_published(built, name):
    """A network has as many parameters as its makers count, or as its layers' sizes give."""
    module, _ = built[name]
    assert sum(p.numel() for p in module.parameters()) == (PUBLISHED | DERIVED)[name]


@pytest.mark.parametrize("name", zoo.names())
def test_records_say_what_is_built(built, name):
    """Batch and precision are those of the record, the optimiser is one that capture has, and nothing is blank."""
    record, (module, inputs) = zoo.network(name), built[name]
    assert record.name == name
    assert record.about.endswith(".")
    assert record.paper
    assert record.optimizer in OPTIMIZERS
    assert {t.shape[0] for t in inputs} == {record.batch}
    floats = {t.dtype for t in [*module.parameters(), *inputs] if t.is_floating_point()}
    assert floats == {getattr(torch, record.dtype)}


@pytest.mark.parametrize("name", zoo.names())
def test_layers_have_their_scope(built, name):
    """No parameter hangs at the root of its module but tables of places, the class token and the output's bias."""
    module, _ = built[name]
    assert {n for n, _ in module.named_parameters() if "." not in n} <= {"places", "bias"}


def test_batches_are_those_of_the_papers():
    """ColocRL and Post state batch 32 for Inception and ResNet, ColocRL 64 for RNNLM and NMT."""
    batches = {name: zoo.network(name).batch for name in zoo.names()}
    assert batches["inception-v3"] == batches["resnet-152"] == 32
    assert batches["inception-v3-b1"] == 1
    assert {batches[name] for name in batches if name.startswith(("rnnlm", "nmt"))} == {64}


def test_the_record_is_frozen():
    """Nobody changes a network for everybody else."""
    with pytest.raises(FrozenInstanceError):
        zoo.network("vgg-16").batch = 1


def test_unknown_names_are_refused_with_advice():
    """A name that is almost right is answered with the right one."""
    for call in (zoo.network, zoo.build, zoo.load):
        with pytest.raises(UnknownNameError, match=r"Did you mean.*resnet-50"):
            call("resnet-5")


def test_the_import_is_cheap():
    """Names and records need no numerical library."""
    script = (
        "import sys; from placewright import zoo; zoo.network(zoo.names()[0]);"
        "print([m for m in ('numpy', 'scipy', 'numba', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_batch_may_be_given():
    """Every input has as many samples as asked for; without targets there is one fewer for an image network."""
    _, inputs = zoo.build("spotlight-cifar10", batch=3, training=False)
    assert [tuple(t.shape) for t in inputs] == [(3, 3, 24, 24)]


@pytest.mark.parametrize(("batch", "says"), [(0, "1 or more"), (-2, "1 or more"), (1.5, "whole"), ("8", "whole")])
def test_a_wrong_batch_is_refused(batch, says):
    """A batch is a positive whole number."""
    with pytest.raises(InputError, match=f"batch is .*{says}"):
        zoo.build("spotlight-cifar10", batch=batch)


def test_building_leaves_the_default_precision():
    """A network in bfloat16 changes nothing for the tensors that are made after it, even when building fails."""
    with fake_tensors():
        zoo.build("unet-sd1", batch=1)
    assert torch.get_default_dtype() is torch.float32
    with pytest.raises(InputError):
        zoo.build("unet-sd1", batch=0)
    assert torch.get_default_dtype() is torch.float32


def test_the_auxiliary_classifier_is_as_large_as_published():
    """Inception-v3 with its auxiliary classifier has the 27,161,264 parameters of PyTorch's own."""
    with fake_tensors():
        module, inputs = inception(2, True, auxiliary=True)
        assert module(*inputs).shape == ()
    assert sum(p.numel() for p in module.parameters()) == 27_161_264


def test_load_gives_the_training_step():
    """A training step has every parameter, and an update for each; the graph has the network's name."""
    graph = zoo.load("spotlight-cifar10")
    assert graph.name == "spotlight-cifar10"
    assert int((graph.phase == PARAMETER).sum()) == 10  # five layers with weight and bias, and sgd keeps no state
    assert int((graph.phase == UPDATE).sum()) == 10


def test_load_gives_an_inference_pass():
    """Without training there is nothing but a forward pass, of as many operations at any batch."""
    graph, single = (zoo.load("spotlight-cifar10", training=False, batch=batch) for batch in (None, 1))
    assert int((graph.phase == UPDATE).sum()) == 0
    assert int((graph.phase == FORWARD).sum()) > 10
    assert len(single.phase) == len(graph.phase)
    assert single.flops.sum() < graph.flops.sum() / 50


def test_load_takes_another_optimizer_and_order():
    """Adam keeps state that plain SGD does not have, and updates may come last."""
    early = zoo.load("spotlight-cifar10", optimizer="adam")
    late = zoo.load("spotlight-cifar10", optimizer="adam", update_order="end")
    assert int((early.phase == PARAMETER).sum()) > 10
    first = [int((graph.phase == UPDATE).argmax()) for graph in (early, late)]
    assert first[0] < first[1]


def test_an_inference_pass_has_no_optimizer():
    """Asking for both is a mistake."""
    with pytest.raises(InputError, match="inference pass updates nothing"):
        zoo.load("spotlight-cifar10", training=False, optimizer="adam")


def test_load_knows_members_of_families():
    """`layered/3` is member 3 of its family; members are not listed."""
    from placewright.zoo import families

    assert zoo.load("layered/3").flops.tolist() == families.graph("layered", 3).flops.tolist()
    assert not any("/" in name for name in zoo.names())


@pytest.mark.parametrize("name", ["layered/", "layered/x", "layered/-1", "layered/" + "9" * 5000])
def test_a_wrong_member_is_refused(name):
    """A member is a whole number that is not absurdly large."""
    with pytest.raises(InputError, match="whole number"):
        zoo.load(name)


def test_an_unknown_family_is_refused():
    """The families that there are get listed."""
    with pytest.raises(UnknownNameError, match="layered"):
        zoo.load("lairs/3")


@pytest.mark.parametrize("options", [{"training": False}, {"batch": 2}, {"optimizer": "sgd"}, {"update_order": "end"}])
def test_members_take_no_options(options):
    """A member is one graph, and says so."""
    with pytest.raises(InputError, match="takes no options"):
        zoo.load("layered/3", **options)


def test_every_network_is_documented():
    """docs/zoo.md has a row for every network, with its batch, precision, optimiser and parameters."""
    rows = {
        cells[1].strip("` "): [cell.strip() for cell in cells]
        for line in (Path(__file__).parents[1] / "docs" / "zoo.md").read_text().splitlines()
        if len(cells := line.split("|")) > 6
    }
    for name in zoo.names():
        record, count = zoo.network(name), (PUBLISHED | DERIVED)[name]
        assert {f"{count:,}", str(record.batch), record.dtype, record.optimizer} <= set(rows[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("llama-7b", 7_000, 10_000), ("llama-70b", 17_000, 25_000), ("nmt-8", 40_000, 90_000)],
)
def test_whole_steps_have_the_expected_size(name, least, most):
    """Training steps of the large networks are captured with as many operations as their layers suggest."""
    assert least <= len(zoo.load(name).phase) <= most
