"""Write two_towers.json.gz: one training step of a network with an image tower and a text tower.

The image tower is a small residual network, the text tower a small transformer. Their embeddings meet in a
contrastive loss, as in CLIP (Radford et al. 2021), and AdamW updates every weight. Until the loss the towers
do not need each other, so two GPUs can do in little more than half the time what one does:

    python examples/two_towers.py
    placewright compare examples/two_towers.json.gz --machine k40x2

Every figure follows from the widths below; nothing is measured. An activation is kept until the backward
operations that read it have run; gradients that meet at one activation are added by whoever reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import placewright as pw

FLOAT = 4  # bytes of a float32
BATCH = 64
PIXELS, CHANNELS = 224, (64, 64, 128, 256, 512)  # sides of an image; channels of the stem and of the four stages
TOKENS, VOCABULARY, WIDTH, BLOCKS, HIDDEN = 77, 30_000, 512, 4, 2048  # of the text tower
EMBEDDING = 256  # of both towers

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """A tensor of the forward pass: who makes it, and its shape. Data need no gradient."""

    op: str
    shape: Shape
    needs_gradient: bool = True

    @property
    def bytes(self) -> int:
        """Its size."""
        return FLOAT * math.prod(self.shape)


@dataclass
class Layer:
    """A forward operation, and what its backward needs."""

    name: str
    kind: str
    scope: str
    inputs: Sequence[Value]
    output: Value
    weights: Shape | None  # of its parameter, if it has one
    flops: float
    backward_flops: float
    keeps: Sequence[Value]  # activations that its backward reads
    skip: Value | None = None  # is added to the output
    workspace: int = 0


@dataclass
class Network:
    """Collects layers in program order, then writes the whole step."""

    data: list[pw.Operation] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)

    def input(self, scope: str, name: str, shape: Shape, item_bytes: int = FLOAT) -> Value:
        """Add data that arrive with the step."""
        size = item_bytes * math.prod(shape)
        name = f"{scope}.{name}"
        self.data.append(pw.Operation(name, "input", "input", scope, outputs=(pw.Tensor(size, shape=shape),)))
        return Value(name, shape, needs_gradient=False)

    def add(
        self,
        scope: str,
        name: str,
        kind: str,
        inputs: Sequence[Value],
        shape: Shape,
        flops: float,
        *,
        backward: float = 2.0,
        weights: Shape | None = None,
        keeps: Sequence[Value] | None = None,
        keeps_output: bool = False,
        skip: Value | None = None,
        workspace: int = 0,
    ) -> Value:
        """Add a layer; its backward takes `backward` times the flops and reads its inputs unless `keeps` says."""
        name = f"{scope}.{name}"
        output = Value(name, shape)
        kept = [*(inputs if keeps is None else keeps), *([output] if keeps_output else [])]
        layer = Layer(name, kind, scope, inputs, output, weights, flops, backward * flops, kept, skip, workspace)
        self.layers.append(layer)
        return output

    # ------------------------------------------------------------------------------ layers

    def linear(self, scope: str, name: str, x: Value, width: int, skip: Value | None = None) -> Value:
        """A matrix product with a bias."""
        *rows, inner = x.shape
        flops = 2.0 * math.prod(rows) * inner * width
        return self.add(scope, name, "linear", [x], (*rows, width), flops, weights=(inner + 1, width), skip=skip)

    def convolution(self, scope: str, name: str, x: Value, channels: int, size: int, stride: int) -> Value:
        """A square convolution; its workspace is one image, unfolded."""
        batch, inner, side, _ = x.shape
        out = side // stride
        per_pixel = inner * size * size
        flops = 2.0 * batch * channels * out * out * per_pixel
        return self.add(
            scope, name, "convolution", [x], (batch, channels, out, out), flops,
            weights=(channels, inner, size, size), workspace=FLOAT * per_pixel * out * out,
        )  # fmt: skip

    def norm_relu(self, scope: str, name: str, x: Value, skip: Value | None = None) -> Value:
        """Batch normalisation, the residual's addition and ReLU in one; ReLU's backward needs the output."""
        flops = 8.0 * math.prod(x.shape)
        weights = (2, x.shape[1])
        return self.add(scope, name, "batch_norm", [x], x.shape, flops, weights=weights, keeps_output=True, skip=skip)

    def layer_norm(self, scope: str, name: str, x: Value) -> Value:
        """Normalise over the last axis."""
        return self.add(
            scope, name, "layer_norm", [x], x.shape, 8.0 * math.prod(x.shape), weights=(2, x.shape[-1])
        )  # fmt: skip

    def attention(self, scope: str, qkv: Value) -> Value:
        """Scaled dot products without keeping their matrix; the backward computes it anew."""
        batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        flops = 4.0 * batch * tokens * tokens * width
        return self.add(
            scope, "attention", "attention", [qkv], (batch, tokens, width), flops, backward=2.5, keeps_output=True
        )

    # ------------------------------------------------------------------------------ the whole step

    def step(self) -> list[pw.Operation]:
        """Return every operation of a training step, in program order."""
        operations = list(self.data)
        for layer in self.layers:
            operations += self._parameters(layer)
            operations.append(self._forward(layer))
        gradients: dict[str, list[tuple[str, int]]] = {}  # of each forward value, from those that read it
        for layer in reversed(self.layers):
            operations.append(self._backward(layer, gradients))
            operations += self._update(layer)
        return operations

    def _parameters(self, layer: Layer) -> list[pw.Operation]:
        """Return a layer's weights, and AdamW's two moments of them."""
        if layer.weights is None:
            return []
        weights = pw.Tensor(FLOAT * math.prod(layer.weights), shape=layer.weights)
        return [
            pw.Operation(f"{layer.name}.weight", "parameter", "parameter", layer.scope, outputs=(weights,)),
            pw.Operation(f"{layer.name}.state", "parameter", "parameter", layer.scope, outputs=(weights, weights)),
        ]

    def _forward(self, layer: Layer) -> pw.Operation:
        """Return the forward operation of a layer."""
        reads = [*layer.inputs, *([layer.skip] if layer.skip else [])]
        weights = FLOAT * math.prod(layer.weights) if layer.weights else 0
        if layer.kind == "embedding":
            weights = layer.output.bytes  # only the rows that are looked up
        return pw.Operation(
            layer.name, layer.kind, "forward", layer.scope,
            flops=layer.flops,
            bytes_read=sum(value.bytes for value in reads) + weights,
            bytes_written=layer.output.bytes,
            workspace_bytes=layer.workspace,
            inputs=[*(value.op for value in reads), *([f"{layer.name}.weight"] if layer.weights else [])],
            outputs=(pw.Tensor(layer.output.bytes, shape=layer.output.shape, output=layer is self.layers[-1]),),
        )  # fmt: skip

    def _backward(self, layer: Layer, gradients: dict[str, list[tuple[str, int]]]) -> pw.Operation:
        """Return the backward operation of a layer: gradients of its inputs, then of its weights."""
        name = f"{layer.name}.backward"
        arriving = gradients.get(layer.output.op, [])
        made = [value for value in layer.inputs if value.needs_gradient]
        for k, value in enumerate(made):
            gradients.setdefault(value.op, []).append((name, k))
        if layer.skip is not None:  # an addition hands its gradient on as it is
            gradients.setdefault(layer.skip.op, []).extend(arriving)
        outputs = [pw.Tensor(value.bytes, shape=value.shape) for value in made]
        weights = FLOAT * math.prod(layer.weights) if layer.weights else 0
        if layer.weights:
            outputs.append(pw.Tensor(weights, shape=layer.weights))
        kept = list(dict.fromkeys(layer.keeps))
        reads = len(arriving) * layer.output.bytes + sum(value.bytes for value in kept)
        return pw.Operation(
            name, f"{layer.kind}_backward", "backward", layer.scope,
            flops=layer.backward_flops,
            bytes_read=reads + (weights if layer.kind != "embedding" else 0),
            bytes_written=sum(tensor.bytes for tensor in outputs),
            workspace_bytes=layer.workspace,
            inputs=[*arriving, *(value.op for value in kept), *([f"{layer.name}.weight"] if layer.weights else [])],
            outputs=outputs,
        )  # fmt: skip

    def _update(self, layer: Layer) -> list[pw.Operation]:
        """Return AdamW's step on a layer's weights, once all who read them have, and the stores of what is new."""
        if layer.weights is None:
            return []
        count = math.prod(layer.weights)
        weight, state, backward = f"{layer.name}.weight", f"{layer.name}.state", f"{layer.name}.backward"
        gradient = (backward, sum(value.needs_gradient for value in layer.inputs))
        homes = [(weight, 0), (state, 0), (state, 1)]
        update = pw.Operation(
            f"{layer.name}.update", "adamw", "update", layer.scope,
            flops=14.0 * count,
            bytes_read=4 * FLOAT * count,
            bytes_written=3 * FLOAT * count,
            inputs=[*homes, gradient],
            after=[layer.name, backward],
            outputs=[pw.Tensor(FLOAT * count, storage=home, in_place=True, shape=layer.weights) for home in homes],
        )  # fmt: skip
        new = f"{layer.name}.update"
        return [
            update,
            pw.Operation(f"{layer.name}.store", "store", "store", layer.scope, inputs=[(new, 0)]),
            pw.Operation(f"{layer.name}.state_store", "store", "store", layer.scope, inputs=[(new, 1), (new, 2)]),
        ]


def image_tower(net: Network) -> Value:
    """A residual network of one block per stage, then its embedding."""
    x = net.input("image", "pixels", (BATCH, 3, PIXELS, PIXELS))
    x = net.convolution("image.stem", "convolution", x, CHANNELS[0], size=7, stride=2)
    x = net.norm_relu("image.stem", "norm", x)
    batch, channels, side, _ = x.shape
    pooled = (batch, channels, side // 2, side // 2)
    x = net.add("image.stem", "pool", "max_pool", [x], pooled, 9.0 * math.prod(pooled), backward=1.0, keeps_output=True)
    for stage, channels in enumerate(CHANNELS[1:]):
        scope, stride = f"image.stage{stage}", 1 if stage == 0 else 2
        skip = x if stride == 1 else net.convolution(scope, "shortcut", x, channels, size=1, stride=stride)
        x = net.norm_relu(scope, "norm1", net.convolution(scope, "convolution1", x, channels, size=3, stride=stride))
        x = net.convolution(scope, "convolution2", x, channels, size=3, stride=1)
        x = net.norm_relu(scope, "norm2", x, skip=skip)
    pooled = x.shape[:2]
    x = net.add("image.head", "pool", "mean", [x], pooled, float(math.prod(x.shape)), backward=1.0, keeps=[])
    return net.linear("image.head", "projection", x, EMBEDDING)


def text_tower(net: Network) -> Value:
    """A transformer with normalisation before each part, then its embedding."""
    tokens = net.input("text", "tokens", (BATCH, TOKENS), item_bytes=8)
    shape = (BATCH, TOKENS, WIDTH)
    x = net.add("text", "embedding", "embedding", [tokens], shape, 0.0, weights=(VOCABULARY, WIDTH))
    for block in range(BLOCKS):
        scope = f"text.block{block}"
        y = net.linear(scope, "qkv", net.layer_norm(scope, "norm1", x), 3 * WIDTH)
        x = net.linear(scope, "projection", net.attention(scope, y), WIDTH, skip=x)
        y = net.linear(scope, "up", net.layer_norm(scope, "norm2", x), HIDDEN)
        y = net.add(scope, "gelu", "gelu", [y], y.shape, 10.0 * math.prod(y.shape), backward=1.5)
        x = net.linear(scope, "down", y, WIDTH, skip=x)
    x = net.layer_norm("text.head", "norm", x)
    x = net.add("text.head", "pool", "mean", [x], (BATCH, WIDTH), float(math.prod(x.shape)), backward=1.0, keeps=[])
    return net.linear("text.head", "projection", x, EMBEDDING)


def two_towers() -> pw.OpGraph:
    """Build the graph: both towers, the loss, the backward pass and the updates."""
    net = Network()
    embeddings = [image_tower(net), text_tower(net)]
    for k, (name, x) in enumerate(zip(("image", "text"), embeddings, strict=True)):
        flops = 3.0 * math.prod(x.shape)
        embeddings[k] = net.add("loss", f"normalize_{name}", "normalize", [x], x.shape, flops, keeps_output=True)
    logits = net.add("loss", "logits", "matmul", embeddings, (BATCH, BATCH), 2.0 * BATCH * BATCH * EMBEDDING)
    net.add("loss", "cross_entropy", "cross_entropy", [logits], (1,), 10.0 * BATCH * BATCH, backward=1.0)
    return pw.build_graph("two_towers", net.step())


if __name__ == "__main__":
    path = Path(__file__).with_name("two_towers.json.gz")
    graph = two_towers()
    pw.write_graph(graph, path)
    size = pw.format_bytes(graph.persistent_bytes)
    print(f"{path}: {graph.n_ops} operations, {size} of weights and optimiser state, {path.stat().st_size} bytes")
