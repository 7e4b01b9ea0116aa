"""Small models, one for each thing that capture must get right: name to (model, args, kwargs, loss)."""

import functools
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


class Case(NamedTuple):
    """A model with its inputs; `loss` makes a number of its output, None means that the output is the loss."""

    model: nn.Module
    args: tuple = ()
    kwargs: dict = MappingProxyType({})
    loss: object = None
    random: bool = False
    """Whether random numbers are drawn, so that only program order gives the same ones."""
    exact: bool = True
    """Whether the captured operations run the kernels that eager execution runs."""


class ConvNorm(nn.Module):
    """Convolutions, batch normalisation, an in-place ReLU, pooling, cross entropy."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.second, self.head = nn.Conv2d(6, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.norm(self.first(images)), inplace=True), 2)
        return F.cross_entropy(self.head(self.second(x).mean((2, 3))), labels)


class Residual(nn.Module):
    """Skip connections, group normalisation, a concatenation, an upsampling."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)
        self.down, self.up = nn.Conv2d(4, 4, 2, 2), nn.ConvTranspose2d(4, 4, 2, 2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        y = x + self.c(F.silu(self.b(self.a(x))))
        low = F.interpolate(self.down(y), scale_factor=2.0, mode="nearest")
        return self.out(torch.cat([y, low + self.up(self.down(y))], 1)).square().mean()


class Recurrent(nn.Module):
    """A two-layer LSTM of torch and the last step's output."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.rnn, self.head = kind(5, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x, labels):
        return F.cross_entropy(self.head(self.rnn(x)[0][:, -1]), labels)


class Unrolled(nn.Module):
    """A cell that is called once per step, its weights shared by all steps."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(11, 6), nn.GRUCell(6, 6), nn.Linear(6, 11)

    def forward(self, words):
        state, total = torch.zeros(words.shape[0], 6), 0.0
        for t in range(words.shape[1] - 1):
            state = self.cell(self.embed(words[:, t]), state)
            total = total + F.cross_entropy(self.head(state), words[:, t + 1])
        return total


class Attention(nn.Module):
    """Causal attention with fewer heads of keys than of queries, layer normalisation, a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.q, self.kv = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16, bias=False)
        self.out = nn.Linear(16, 16)

    def forward(self, x):
        n = self.norm(x)
        q = self.q(n).unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = self.kv(n).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return (x + self.out(y.transpose(1, 2).flatten(2))).pow(2).mean()


class Tied(nn.Module):
    """A language model whose head is the embedding's weight, and whose norm is used twice."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(13, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embed.weight
        self.again = self.hidden

    def forward(self, words):
        x = self.norm(self.again(torch.tanh(self.hidden(self.norm(self.embed(words))))))
        return {"loss": F.cross_entropy(self.head(x).flatten(0, 1), words.flatten()), "hidden": x}


class Inplace(nn.Module):
    """Writes in place: into activations, slices of them, views, and a buffer that counts and averages."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        y = self.a(x)
        y[:, :2] = 0.0
        y[:, 2:4].mul_(2.0)
        y.add_(1.0)
        with torch.no_grad():
            self.count += 1
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
        z = self.b(y).relu_()
        return ((z + self.mean) * self.count).sum() + (self.mean[:3] * y[:, 3:]).sum()


class TwoTowers(nn.Module):
    """Two inputs of different kinds, one of them in a dictionary given by keyword, and a dictionary of outputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.EmbeddingBag(9, 8, mode="sum")

    def forward(self, image, *, text):
        a, b = self.left(image), self.right(text["ids"])
        return {"scores": a @ b.T, "left": a, "right": b}


class Dropout(nn.Module):
    """Dropout between layers, and on the weights of an attention."""

    def __init__(self):
        super().__init__()
        self.a, self.drop, self.b = nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(self.drop(F.gelu(self.a(x)))).square().sum()


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))

    def forward(self, x):
        for k, block in enumerate(self.blocks):
            x = x + (checkpoint(block, x, use_reentrant=False) if k < 2 else block(x))
        return x.square().mean()


class Nested(nn.Module):
    """Checkpoints within a checkpoint, one after the other and one in the other."""

    def __init__(self, reentrant=False):
        super().__init__()
        self.layers, self.reentrant = nn.ModuleList(nn.Linear(6, 6, bias=k != 1) for k in range(5)), reentrant

    def again(self, function, x):
        return checkpoint(function, x, use_reentrant=self.reentrant)

    def forward(self, x):
        first, a, b, c, last = self.layers

        def deepest(x):
            return torch.tanh(c(x))

        def within(x):
            return torch.cos(self.again(deepest, torch.sin(b(x))) * x)

        def whole(x):
            return torch.sigmoid(self.again(deepest, self.again(within, torch.tanh(a(x)))))

        return last(self.again(whole, first(x))).square().sum()


def products(_, target, *args, **kwargs):
    """A policy of selective checkpointing that saves what products make, but for the last of them."""
    save = target is torch.ops.aten.addmm.default and args[1].shape[1] == 6
    return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE


class Selective(nn.Module):
    """A checkpoint that saves products, within a plain one."""

    def __init__(self, policy=products):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 6), nn.Tanh()
        )
        self.first, self.last, self.policy = nn.Linear(6, 6), nn.Linear(6, 3), policy

    def forward(self, x):
        def selected(x):
            contexts = functools.partial(create_selective_checkpoint_contexts, self.policy)
            return checkpoint(self.layers, x, use_reentrant=False, context_fn=contexts)

        x = selected(self.first(x))
        return self.last(checkpoint(lambda x: torch.sin(selected(torch.cos(x))), x, use_reentrant=False)).square().sum()


class RootMeanSquare(nn.Module):
    """Normalisation by the root of the mean square, with a weight and without."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.plain = nn.Linear(6, 6), nn.RMSNorm(6), nn.RMSNorm(6, elementwise_affine=False)

    def forward(self, x):
        return (self.norm(self.a(self.plain(x))) * torch.linspace(-1, 2, 6)).tanh().sum()


class Experts(nn.Module):
    """Two experts for each token of a fixed capacity, chosen by a router; integer indices, gather and scatter."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, 8, 16) / 4), nn.Parameter(torch.randn(4, 16, 8) / 4)

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        gate, chosen = weights.topk(6, dim=0)  # for each expert, six tokens
        tokens = x[chosen.T]
        made = torch.relu(tokens @ self.up) @ self.down * gate.T.unsqueeze(-1)
        out = torch.zeros_like(x).index_add(0, chosen.T.flatten(), made.flatten(0, 1))
        return (x + out).square().mean()


class Frozen(nn.Module):
    """A backbone without gradients in half of its parameters, and a buffer that is only read."""

    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.backbone.weight.requires_grad_(False)
        self.register_buffer("scale", torch.arange(6.0))

    def forward(self, x):
        return self.head(torch.sin(self.backbone(x * self.scale))).sum()


class Expanded(nn.Module):
    """Broadcast parameters, views of parts of a parameter, a class token, scalars of torch."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 9, 6))
        self.qkv, self.temperature = nn.Parameter(torch.randn(18, 6)), nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position[:, : x.shape[1] + 1]
        q, k, v = (F.linear(x, weight) for weight in self.qkv.chunk(3))
        return ((q @ k.mT / self.temperature).softmax(-1) @ v).square().mean()


class Lookups(nn.Module):
    """Rows and elements of a table, found in every way; what is found more than once has its gradients summed."""

    def __init__(self):
        super().__init__()
        self.table, self.bag = nn.Parameter(torch.randn(7, 6)), nn.EmbeddingBag(7, 6, mode="sum")
        self.mix = nn.Linear(6, 3)

    def forward(self, ids):
        rows = self.table[ids] + self.table.index_select(0, ids.flatten()).view(*ids.shape, 6)
        places = self.table.gather(0, ids) + self.table.take(ids)
        best = self.table.max(1).values.sum() + self.table.topk(2, dim=0).values.square().sum()
        return self.mix(rows).square().sum() + places.exp().sum() + best + self.bag(ids).sin().sum()


def _scores(out):
    return out["scores"].logsumexp(1).mean() + out["left"].sum() * 0.1 + out["right"].sum() * 0.1


class Namesakes(nn.Module):
    """Children with the names that a step uses for its own parts, and others with theirs."""

    def __init__(self):
        super().__init__()
        self.model = nn.ModuleDict({"model": nn.Linear(4, 5), "linear": nn.Linear(5, 4)})
        self.linear = nn.Linear(4, 3)
        self.loss, self.attributes = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.model["linear"](self.model["model"](x).tanh())
        return self.attributes(self.loss(self.linear(hidden))).square().sum()


def cases():
    """Every case by name, with fixed weights and inputs."""
    torch.manual_seed(20)
    words = torch.randint(11, (3, 5))
    return {
        "conv-norm": Case(ConvNorm(), (torch.randn(4, 3, 8, 8), torch.randint(5, (4,)))),
        "residual": Case(Residual(), (torch.randn(2, 4, 8, 8),)),
        "lstm": Case(Recurrent(), (torch.randn(3, 4, 5), torch.randint(3, (3,))), exact=False),
        "gru": Case(Recurrent(nn.GRU), (torch.randn(3, 4, 5), torch.randint(3, (3,)))),
        "unrolled": Case(Unrolled(), (words,)),
        "attention": Case(Attention(), (torch.randn(2, 7, 16),)),
        "tied": Case(Tied(), (words,), loss=lambda out: out["loss"]),
        "in-place": Case(Inplace(), (torch.randn(5, 6),)),
        "two-towers": Case(TwoTowers(), (torch.randn(3, 4),), {"text": {"ids": torch.randint(9, (3, 4))}}, _scores),
        "dropout": Case(Dropout(), (torch.randn(6, 8),), random=True),
        "checkpointed": Case(Checkpointed(), (torch.randn(4, 8),)),
        "nested-checkpoints": Case(Nested(), (torch.randn(4, 6),)),
        "selective-checkpoint": Case(Selective(), (torch.randn(4, 6),)),
        "rms-norm": Case(RootMeanSquare(), (torch.randn(4, 3, 6),), exact=False),
        "experts": Case(Experts(), (torch.randn(10, 8),)),
        "lookups": Case(Lookups(), (torch.randint(6, (4, 3)),)),
        "namesakes": Case(Namesakes(), (torch.randn(6, 4),), exact=False),
        "frozen": Case(Frozen(), (torch.randn(4, 6),)),
        "expanded": Case(Expanded(), (torch.randn(2, 5, 6),)),
        "encoder-layer": Case(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True), (torch.randn(2, 5, 8),),
            loss=lambda out: (out * torch.linspace(-3, 5, 8)).tanh().sum(), random=True, exact=False,
        ),
        "mlp": Case(nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 1)), (torch.randn(5, 4),),
                    loss=lambda out: out.abs().mean()),
    }  # fmt: skip
