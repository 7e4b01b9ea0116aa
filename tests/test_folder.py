"""Models of transformers folders, from their configuration alone."""

import json
import logging

import pytest
import torch

from placewright.capture import capture, fake_tensors, torch_private
from placewright.capture.folder import from_folder
from placewright.errors import FileError, InputError, UnknownNameError

GPT = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 32, "n_head": 2,
       "n_positions": 64, "vocab_size": 100}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Writes a configuration and returns its folder."""

    def write(config):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return tmp_path

    return write


def test_a_decoder_by_formula(folder):
    """Parameters by the sizes of the configuration, the tied head once; the loss is found."""
    with fake_tensors():
        model, args, kwargs = from_folder(folder(GPT), batch=3, length=10, training=True)
    layer = 12 * 32 * 32 + 13 * 32
    assert sum(p.numel() for p in model.parameters()) == (100 + 64) * 32 + 2 * layer + 2 * 32
    assert all(torch_private.is_fake(p) for p in model.parameters())
    assert kwargs["input_ids"].shape == kwargs["labels"].shape == (3, 10)
    assert model.training
    graph = capture(model, args, kwargs, optimizer="sgd")
    assert graph.kinds.count("sgd") == 2 + 12 * 2 + 2
    assert not any(name.startswith("gradient.") for name in graph.op_names)


def test_a_task_chooses_the_class(folder):
    model, _, kwargs = from_folder(folder(GPT), task="text-classification", training=True)
    assert type(model).__name__ == "GPT2ForSequenceClassification"
    assert kwargs["labels"].shape == (1,)


BERT = {"model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50,
        "intermediate_size": 32, "id2label": {"0": "a", "1": "b", "2": "c"}}  # fmt: skip
SOUND = {"model_type": "wav2vec2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "intermediate_size": 32, "conv_dim": [8], "conv_stride": [5], "conv_kernel": [10],
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "id2label": BERT["id2label"]}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "name", "problem", "shape"),
    [
        (BERT, "BertForSequenceClassification", None, (2,)),
        (BERT, "BertForSequenceClassification", "single_label_classification", (2,)),
        (BERT, "BertForSequenceClassification", "multi_label_classification", (2, 3)),
        (BERT, "BertForSequenceClassification", "regression", (2, 3)),
        (BERT, "BertForMultipleChoice", "regression", (2,)),
        (GPT | {"id2label": {"0": "x"}, "pad_token_id": 0}, "GPT2ForSequenceClassification", "regression", (2, 1)),
        (SOUND, "Wav2Vec2ForSequenceClassification", "regression", (2,)),  # which has one loss, by classes
    ],
)
def test_labels_are_of_the_problem(folder, config, name, problem, shape):
    """Classes, or numbers where the configuration asks for them; the loss that the class makes of them is found."""
    path = folder(config | {"architectures": [name], "problem_type": problem})
    with fake_tensors():
        model, args, kwargs = from_folder(path, batch=2, length=400 if config is SOUND else 8, training=True)
    assert kwargs["labels"].shape == shape
    assert kwargs["labels"].is_floating_point() == (len(shape) == 2)
    if config is not SOUND:  # which some versions of transformers drop layers of, by numbers drawn in the pass
        graph = capture(model, args, kwargs, optimizer="sgd")
        assert not any(op.startswith("gradient.") for op in graph.op_names)


def test_nothing_is_logged(folder):
    """Transformers advises on tokens of text generation that the vocabulary lacks, and on losses in the pass."""
    kept, records = logging.Handler(), []
    kept.emit = records.append
    root = logging.getLogger("transformers")
    root.addHandler(kept)
    try:
        model, args, kwargs = from_folder(folder(GPT), length=8, training=True)
        model.register_forward_hook(lambda *_: logging.getLogger("transformers.models.gpt2").warning("choose a loss"))
        capture(model, args, kwargs, optimizer="sgd")
        assert not records
        model(**kwargs)
        assert "choose a loss" in [record.getMessage() for record in records]
    finally:
        root.removeHandler(kept)


def test_code_of_a_folder_is_never_run(folder):
    """A configuration that names code is refused where only that code could build it, and the code left alone."""
    (folder(GPT) / "modeling_mine.py").write_text("raise SystemExit")
    named = {"auto_map": {"AutoModel": "modeling_mine.Mine", "AutoConfig": "modeling_mine.Config"}}
    model, _, _ = from_folder(folder(GPT | named))
    assert type(model).__module__.startswith("transformers.")
    with pytest.raises(FileError, match="code of its own, which is never run"):
        from_folder(folder(GPT | named | {"model_type": "mine"}))
    with pytest.raises(FileError, match="'Mine' is no model class of transformers; code that comes"):
        from_folder(folder(GPT | {"architectures": ["Mine"]}))
    model, _, _ = from_folder(folder(GPT | {"attn_implementation": "someone/kernel"}))
    assert isinstance(model, torch.nn.Module)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "expected a JSON object"),
        ({}, "model_type: is missing"),
        ({"model_type": 3}, "model_type: is missing"),
        ({"model_type": "gpt5"}, "has no model type 'gpt5'; did you mean 'gpt"),
        (GPT | {"n_embd": "wide"}, "transformers refuses it as a gpt2 configuration"),
        (GPT | {"n_embd": 33}, "GPT2LMHeadModel cannot be built from it"),
        (GPT | {"architectures": ["BertModel"]}, "'BertModel' is built from a BertConfig"),
        (GPT | {"architectures": ["os.system"]}, "expected the names of classes"),
        (GPT | {"quantization_config": {"bits": 4}}, "quantised weights cannot be built from a config alone"),
        (GPT | {"dtype": "float8_e4m3fn"}, "is not one of float32"),
    ],
)
def test_configurations_that_are_refused(folder, config, words):
    with pytest.raises(FileError) as caught:
        from_folder(folder(config))
    assert words in str(caught.value)


def test_arguments_that_are_refused(folder, tmp_path):
    """Sizes below one, lengths beyond the positions, tasks that nothing has; folders that are none."""
    path = folder(GPT)
    for options, words in (
        ({"batch": 0}, "batch is 0"),
        ({"length": 0}, "length is 0"),
        ({"length": 65}, "n_positions"),
    ):
        with pytest.raises(InputError, match=words):
            from_folder(path, **options)
    with pytest.raises(UnknownNameError, match="unknown task 'poetry'"):
        from_folder(path, task="poetry")
    with pytest.raises(InputError, match="no model of type 'gpt2' for the task 'fill-mask'"):
        from_folder(path, task="fill-mask")
    with pytest.raises(FileError, match="is not a folder"):
        from_folder(path / "config.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="holds no config"):
        from_folder(tmp_path / "empty")
