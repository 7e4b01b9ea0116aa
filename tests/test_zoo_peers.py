"""The zoo's transformers give what those of the transformers library give, with the same weights."""

import pytest
import torch
import torch.nn.functional as F

from placewright.zoo import bert, gpt, llama, mixtral, vit

transformers = pytest.importorskip("transformers", minversion="5")

VOCABULARY, WIDTH, HEADS, LAYERS = 60, 32, 4, 2


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def fill(module, weights):
    """Give a network of ours these weights: all that it has, and no others."""
    module.load_state_dict(weights, strict=True)
    return module.eval()


def renamed(theirs, names):
    """Weights of their model under our names; `names` are (theirs, ours), in which {k} is any layer's number."""
    state, found = theirs.state_dict(), {}
    for old, new in names:
        for k in range(LAYERS if "{k}" in old else 1):
            for part in ("weight", "bias"):
                key = f"{old.format(k=k)}.{part}"
                if key in state:
                    found[f"{new.format(k=k)}.{part}"] = state[key]
    return found


def shaken(model):
    """Their model in float32, with weights far enough from zero and one for every one of them to matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.float().eval()


DECODER = [
    ("model.embed_tokens", "embedding"),
    ("model.layers.{k}.input_layernorm", "layers.{k}.attention_norm"),
    *((f"model.layers.{{k}}.self_attn.{old}_proj", f"layers.{{k}}.attention.{new}")
      for old, new in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))),
    ("model.layers.{k}.post_attention_layernorm", "layers.{k}.feed_norm"),
    *((f"model.layers.{{k}}.mlp.{part}_proj", f"layers.{{k}}.feed_forward.{part}") for part in ("gate", "up", "down")),
    ("model.norm", "norm"),
    ("lm_head", "output"),
]  # fmt: skip


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_llama(key_heads):
    """The same logits, with as many key heads as query heads or fewer."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=key_heads, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = shaken(transformers.LlamaForCausalLM(config))
    sizes = llama.Sizes(WIDTH, LAYERS, HEADS, key_heads, 48, VOCABULARY)
    ours, (words,) = llama.decoder(
        2, False, steps=11, sizes=sizes, feed_forward=lambda s: llama.SwiGLU(s.width, s.hidden)
    )
    fill(ours, renamed(theirs, DECODER))
    torch.testing.assert_close(ours(words), theirs(words).logits, rtol=1e-4, atol=1e-4)


def test_mixtral():
    """The same logits where experts have room for all tokens."""
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2,
        rope_theta=1e6, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    theirs = shaken(transformers.MixtralForCausalLM(config))
    sizes = llama.Sizes(WIDTH, LAYERS, HEADS, 2, 48, VOCABULARY, base=1e6)
    ours, (words,) = mixtral.mixtral(2, False, sizes=sizes, capacity_factor=4.0, steps=11)
    state = theirs.state_dict()
    weights = renamed(theirs, [*DECODER, ("model.layers.{k}.mlp.gate", "layers.{k}.feed_forward.router")])
    for layer in range(LAYERS):
        both = state[f"model.layers.{layer}.mlp.experts.gate_up_proj"]
        down = state[f"model.layers.{layer}.mlp.experts.down_proj"]
        for k in range(8):
            where = f"layers.{layer}.feed_forward.experts.{k}"
            weights[f"{where}.gate.weight"], weights[f"{where}.up.weight"] = both[k].chunk(2)
            weights[f"{where}.down.weight"] = down[k]
    fill(ours, weights)
    torch.testing.assert_close(ours(words), theirs(words).logits, rtol=1e-4, atol=1e-4)


def test_gpt2():
    """The same logits and the same loss, with the embedding's weight as output layer."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=12, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    theirs = shaken(transformers.GPT2LMHeadModel(config))
    ours, (words,) = gpt.gpt2(2, False, width=WIDTH, layers=LAYERS, heads=HEADS, steps=12, vocabulary=VOCABULARY)
    weights = renamed(theirs, [
        ("transformer.wte", "embedding"),
        ("transformer.h.{k}.ln_1", "layers.{k}.attention_norm"),
        ("transformer.h.{k}.attn.c_attn", "layers.{k}.attention.project"),
        ("transformer.h.{k}.attn.c_proj", "layers.{k}.attention.out"),
        ("transformer.h.{k}.ln_2", "layers.{k}.feed_norm"),
        ("transformer.h.{k}.mlp.c_fc", "layers.{k}.feed_forward.up"),
        ("transformer.h.{k}.mlp.c_proj", "layers.{k}.feed_forward.down"),
        ("transformer.ln_f", "norm"),
    ])  # fmt: skip
    turned = [
        name for name in weights if name.endswith("weight") and name.split(".")[-2] in ("project", "out", "up", "down")
    ]
    weights |= {name: weights[name].T for name in turned}  # theirs are (inputs, outputs)
    weights["places"] = theirs.state_dict()["transformer.wpe.weight"]
    fill(ours, weights)
    torch.testing.assert_close(ours(words), theirs(words).logits, rtol=1e-4, atol=1e-4)
    expected = theirs(words, labels=words).loss  # theirs moves the labels by one
    torch.testing.assert_close(ours(words[:, :-1], words[:, 1:]), expected, rtol=1e-4, atol=1e-4)


def test_bert():
    """The same guesses at the masked places and of the next sentence, and the same loss of both."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, max_position_embeddings=12,
    )  # fmt: skip
    theirs = shaken(transformers.BertForPreTraining(config))
    ours, (words, segments, masked, targets, follows) = bert.bert(
        2, True, width=WIDTH, layers=LAYERS, heads=HEADS, steps=12, masked=3, vocabulary=VOCABULARY
    )
    there = "bert.encoder.layer.{k}"
    weights = renamed(theirs, [
        ("bert.embeddings.word_embeddings", "embedding.words"),
        ("bert.embeddings.token_type_embeddings", "embedding.segments"),
        ("bert.embeddings.LayerNorm", "embedding.norm"),
        *((f"{there}.attention.self.{part}", f"layers.{{k}}.attention.{part}") for part in ("query", "key", "value")),
        (f"{there}.attention.output.dense", "layers.{k}.attention.out"),
        (f"{there}.attention.output.LayerNorm", "layers.{k}.attention_norm"),
        (f"{there}.intermediate.dense", "layers.{k}.feed_forward.up"),
        (f"{there}.output.dense", "layers.{k}.feed_forward.down"),
        (f"{there}.output.LayerNorm", "layers.{k}.feed_norm"),
        ("bert.pooler.dense", "pooler.0"),
        ("cls.predictions.transform.dense", "transform.0"),
        ("cls.predictions.transform.LayerNorm", "transform.2"),
        ("cls.seq_relationship", "following"),
    ])  # fmt: skip
    weights["embedding.places"] = theirs.state_dict()["bert.embeddings.position_embeddings.weight"]
    weights["bias"] = theirs.state_dict()["cls.predictions.bias"]
    fill(ours, weights)
    labels = torch.full_like(words, -100).scatter(1, masked, targets)
    expected = theirs(words, token_type_ids=segments, labels=labels, next_sentence_label=follows)
    guesses, following = ours(words, segments, masked)
    rows = torch.arange(2).unsqueeze(1)
    torch.testing.assert_close(guesses, expected.prediction_logits[rows, masked], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(following, expected.seq_relationship_logits, rtol=1e-4, atol=1e-4)
    loss = ours(words, segments, masked, targets, follows)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-4, atol=1e-4)


def test_vit():
    """The same logits and the same loss."""
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        image_size=32, patch_size=8, layer_norm_eps=1e-6, num_labels=7,
    )  # fmt: skip
    theirs = shaken(transformers.ViTForImageClassification(config))
    ours, (images, labels) = vit.vit(2, True, width=WIDTH, layers=LAYERS, heads=HEADS, patch=8, size=32, classes=7)
    weights = renamed(theirs, [
        ("vit.embeddings.patch_embeddings.projection", "embedding.patches"),
        *((f"vit.layers.{{k}}.attention.{old}_proj", f"layers.{{k}}.attention.{new}")
          for old, new in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "out"))),
        ("vit.layers.{k}.layernorm_before", "layers.{k}.attention_norm"),
        ("vit.layers.{k}.layernorm_after", "layers.{k}.feed_norm"),
        ("vit.layers.{k}.mlp.fc1", "layers.{k}.feed_forward.up"),
        ("vit.layers.{k}.mlp.fc2", "layers.{k}.feed_forward.down"),
        ("vit.layernorm", "norm"),
        ("classifier", "classifier"),
    ])  # fmt: skip
    weights["embedding.token"] = theirs.state_dict()["vit.embeddings.cls_token"]
    weights["embedding.places"] = theirs.state_dict()["vit.embeddings.position_embeddings"]
    fill(ours, weights)
    logits = theirs(images).logits
    torch.testing.assert_close(ours(images), logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(images, labels), F.cross_entropy(logits, labels), rtol=1e-4, atol=1e-4)
