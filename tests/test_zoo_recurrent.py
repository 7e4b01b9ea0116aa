"""The zoo's recurrent networks against PyTorch's own LSTM, attention written out, and sentences without padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from placewright.zoo.recurrent import NMT, PADDING, Attention, LSTMCell, nmt, rnnlm


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def torch_lstm(cells):
    """nn.LSTM with the weights of these cells; their forget gates have 1 more, which goes into its bias."""
    inputs, hidden = cells[0].input_gates.in_features, cells[0].hidden
    lstm = nn.LSTM(inputs, hidden, len(cells), batch_first=True)
    with torch.no_grad():
        for k, cell in enumerate(cells):
            getattr(lstm, f"weight_ih_l{k}").copy_(cell.input_gates.weight)
            getattr(lstm, f"weight_hh_l{k}").copy_(cell.hidden_gates.weight)
            getattr(lstm, f"bias_ih_l{k}").copy_(cell.input_gates.bias)
            getattr(lstm, f"bias_hh_l{k}").copy_(cell.hidden_gates.bias)
            getattr(lstm, f"bias_hh_l{k}")[hidden : 2 * hidden] += 1
    return lstm


@pytest.mark.parametrize("layers", [2, 4])
def test_the_language_model_equals_nn_lstm(layers):
    """Unrolled in Python or inside nn.LSTM: the same logits and the same loss."""
    module, (words, targets) = rnnlm(3, True, layers=layers, hidden=8, steps=6, vocabulary=20)
    outputs, _ = torch_lstm(module.stack.layers)(module.stack.embedding(words))
    logits = F.linear(outputs, module.softmax.projection.weight, module.softmax.projection.bias)
    torch.testing.assert_close(module(words), logits)
    torch.testing.assert_close(module(words, targets), F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_the_encoder_equals_nn_lstm():
    """Two layers of encoder, without residual connections, are an nn.LSTM."""
    module = NMT(20, 8, 2)
    words = torch.randint(20, (3, 5))
    states, outputs = None, []
    for word in module.encoder.embedding(words).unbind(1):
        top, states = module.encoder(word, states)
        outputs.append(top)
    expected, (hidden, cell) = torch_lstm(module.encoder.layers)(module.encoder.embedding(words))
    torch.testing.assert_close(torch.stack(outputs, 1), expected)
    torch.testing.assert_close(torch.stack([h for h, _ in states]), hidden)
    torch.testing.assert_close(torch.stack([c for _, c in states]), cell)


def test_layers_from_the_third_on_are_residual():
    """The output of the third layer is that of its cell and of the second layer together."""
    module, x = NMT(20, 8, 3).encoder, torch.randn(2, 8)
    top, states = module(x, None)
    torch.testing.assert_close(top, states[2][0] + states[1][0])


def test_attention_equals_its_definition():
    """Scores v . tanh(W key + U query), their softmax over the steps, and the weighted sum of the memory."""
    module, top, memory = Attention(8), torch.randn(2, 8), torch.randn(2, 5, 8)
    context, attended = module(top, module.keys(memory), memory, None)
    for b in range(2):
        scores = torch.stack([
            module.score.weight[0] @ torch.tanh(module.keys.weight @ memory[b, t] + module.query.weight @ top[b])
            for t in range(5)
        ])  # fmt: skip
        expected = scores.softmax(0) @ memory[b]
        torch.testing.assert_close(context[b], expected)
        both = torch.cat([top[b], expected])
        torch.testing.assert_close(attended[b], torch.tanh(module.combine.weight @ both))


def test_the_context_feeds_the_next_step():
    """Another context after step 1 leaves the logits of steps 0 and 1 as they are and changes those from step 2 on."""
    module, inputs = nmt(2, False, layers=2, hidden=8, steps=6, vocabulary=20)
    before, calls = module(*inputs), []

    def other(_module, _args, out):
        calls.append(None)
        return (out[0] + 1, out[1]) if len(calls) == 2 else out

    module.attention.register_forward_hook(other)
    changed = (module(*inputs) - before).abs().amax((0, 2)) > 1e-6
    assert changed.tolist()[:3] == [False, False, True]


def test_the_context_enters_the_first_layer_only():
    """The first decoder layer reads word and context, the others what is below them."""
    widths = [layer.input_gates.in_features for layer in NMT(20, 8, 4).decoder.layers]
    assert widths == [16, 8, 8, 8]


def test_padding_changes_nothing_for_the_words_before_it():
    """A sentence gives the same logits alone as among longer ones, and the loss is the mean over its words."""
    module = NMT(20, 8, 3, PADDING)
    source, shifted, targets = (torch.randint(1, 20, (1, 4)) for _ in range(3))
    padded = [F.pad(words, (0, 3), value=PADDING) for words in (source, shifted, targets)]
    longer = [torch.randint(1, 20, (1, 7)) for _ in range(3)]
    alone = module(source, shifted)
    together = module(*(torch.cat(pair) for pair in zip(padded[:2], longer[:2], strict=True)))
    torch.testing.assert_close(together[:1, :4], alone)
    expected = F.cross_entropy(alone.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(module(*padded), expected)
    torch.testing.assert_close(module(source, shifted, targets), expected)


def test_a_cell_that_is_not_alive_keeps_its_state():
    """Where a sentence has ended, hidden and cell state stay; elsewhere they are new."""
    cell, x = LSTMCell(4, 8), torch.randn(2, 4)
    old = torch.randn(2, 8), torch.randn(2, 8)
    new, kept = cell(x, old), cell(x, old, torch.tensor([[True], [False]]))
    for before, after, mixed in zip(old, new, kept, strict=True):
        assert torch.equal(mixed, torch.stack([after[0], before[1]]))


def test_sentences_have_different_lengths():
    """Sources and targets have at least half of the steps, padding only at their ends, and each target its length."""
    _, (source, shifted, targets) = nmt(64, True, layers=2, hidden=8, steps=40, vocabulary=100)
    for words in (source, shifted):
        alive = words != PADDING
        assert not (alive[:, 1:] & ~alive[:, :-1]).any()
        lengths = alive.sum(1)
        assert 20 <= lengths.min() < lengths.max() <= 40
    assert torch.equal(shifted != PADDING, targets != PADDING)
