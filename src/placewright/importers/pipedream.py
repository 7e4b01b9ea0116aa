"""Profiles published with PipeDream (SOSP 2019): text, one line per layer, then the edges.

    node4 -- ReLU() -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=64.0, parameter_size=0
        node3 -- node4

Milliseconds and bytes, measured on one GPU. Each layer becomes a forward, a backward and an update
operation, and its parameters one with a store. docs/formats.md has every choice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from placewright.checks import MAX_BYTES
from placewright.errors import FileError
from placewright.operations import Operation, Tensor, build_graph
from placewright.workload import V100_RATES, Workload, graph_name, made, topological

MODEL = "tesla-v100"
MAX_LAYERS = 50_000
MAX_OUTPUTS = 1000
"""Tensors that one layer makes."""
MAX_READS = 500_000
"""Tensors that all layers make and read, so that a small file cannot become a large graph."""
MAX_LINE = 1 << 20
"""Characters of a line."""

KEEPS_OUTPUT = ("relu", "sigmoid", "tanh", "softmax", "logsoftmax")
"""Kinds whose backward reads the layer's output instead of its inputs."""
KEEPS_NOTHING = ("add", "concat", "view", "getitem", "size", "avgpool2d")
"""Kinds whose backward reads gradients only."""
VIEWS = ("view", "getitem")
"""Kinds whose output shares the bytes of an input of the same size."""
PASSES_BY = ("getitem", "size")
"""Kinds that, without consumers, are unused parts of an output, not the loss."""

_LINE = re.compile(r"[^\n]+")
_LAYER = re.compile(r"node([0-9]{1,9}) -- (.*?) -- (forward_compute_time=.*?)(?: -- stage_id=[0-9]{1,9})?")
_EDGE = re.compile(r"\s*node([0-9]{1,9}) -- node([0-9]{1,9})")
_NUMBER = re.compile(r"[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of the file."""

    number: int
    kind: str
    description: str
    forward_s: float
    backward_s: float
    activations: tuple[int, ...]
    parameter_bytes: int

    @property
    def is_input(self) -> bool:
        """Whether the layer's kind says that it stands for data from outside."""
        return self.kind == "input"

    def name(self, part: str) -> str:
        """Return the name of one of its operations."""
        return f"node{self.number}.{part}"

    @property
    def forward(self) -> str:
        """The name of its forward operation, or of the input."""
        return self.name("input" if self.is_input else "forward")


def workload_of(text: str, path: object) -> Workload:
    """Return the graph in a profile."""
    layers, inputs = _parse(text, path)
    network = _Network(layers, inputs)
    count = network.count()
    if count > MAX_READS:
        more = f"the layers make and read {count} tensors in all; at most {MAX_READS} are allowed"
        raise FileError(path, "edges", f"{more}. A layer reads all outputs of another, unless it picks one")
    operations = [*network.forward_pass(), *network.backward_pass()]
    graph = made(lambda: build_graph(graph_name(path), operations, {MODEL: V100_RATES}), path, "")
    members: dict[int, tuple[str, ...]] = {layer.number: () for layer in layers}
    for operation in operations:
        members[int(operation.scope[4:])] += (operation.name,)
    return Workload(graph, members=members)


# ---- the text -----------------------------------------------------------------------------------


def _parse(text: str, path: object) -> tuple[list[_Layer], list[list[int]]]:
    """Return the layers in the order in which they run, and the layers that each reads."""
    found: dict[int, _Layer] = {}
    edges: list[tuple[int, int, int]] = []
    n, start, outputs = 1, 0, 0
    for row in _LINE.finditer(text):
        n, start = n + text.count("\n", start, row.start()), row.start()
        line, place = row[0].rstrip(), f"line {n}"
        if not line:
            continue
        if edge := _EDGE.fullmatch(line):
            edges.append((n, int(edge[1]), int(edge[2])))
            if len(edges) > MAX_READS:
                raise FileError(path, place, f"more than {MAX_READS} edges")
            continue
        layer = _layer(line, path, place)
        if layer.number in found:
            raise FileError(path, place, f"node{layer.number} is given twice")
        found[layer.number] = layer
        outputs += len(layer.activations)
        if len(found) > MAX_LAYERS or outputs > MAX_READS:
            raise FileError(path, place, f"more than {MAX_LAYERS} layers, or than {MAX_READS} outputs of layers")
    # Numbers were given in the order in which the network ran.
    layers = sorted(found.values(), key=lambda layer: layer.number)
    at = {layer.number: i for i, layer in enumerate(layers)}
    before: list[dict[int, None]] = [{} for _ in layers]
    for n, source, target in edges:
        for number in (source, target):
            if number not in at:
                raise FileError(path, f"line {n}", f"no layer is called node{number}")
        before[at[target]][at[source]] = None
    rows = [list(row) for row in before]
    order = topological(rows, [f"node{layer.number}" for layer in layers], path, "edges")
    rank = {old: new for new, old in enumerate(order)}
    for i, layer in enumerate(layers):
        if layer.is_input and (rows[i] or layer.parameter_bytes):  # only its name says input
            layers[i] = replace(layer, kind="other")
    return [layers[i] for i in order], [[rank[j] for j in rows[i]] for i in order]


def _layer(line: str, path: object, place: str) -> _Layer:
    """Read the line of a layer."""
    if len(line) > MAX_LINE:
        raise FileError(path, place, f"{len(line)} characters; at most {MAX_LINE} are allowed in a line")
    match = _LAYER.fullmatch(line)
    if match is None:
        wanted = "'node1 -- Linear(...) -- forward_compute_time=..., ...' or an edge 'node1 -- node2'"
        raise FileError(path, place, f"is neither a layer nor an edge; write {wanted}")
    fields: dict[str, str] = {}
    for part in match[3].split(", "):
        name, _, value = part.partition("=")
        if name in fields:
            raise FileError(path, place, f"{name[:80]!r} is given twice")
        fields[name] = value
    names = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
    for name in names:
        if name not in fields:
            raise FileError(path, place, f"{name!r} is missing")
    word = re.match(r"_*([A-Za-z][A-Za-z0-9]{0,60})", match[2])
    kind = word[1].lower() if word else "other"
    sizes = fields["activation_size"]
    several = sizes[1:-1].split("; ") if sizes.startswith("[") and sizes.endswith("]") else [sizes]
    if len(several) > MAX_OUTPUTS:
        raise FileError(path, place, f"activation_size has {len(several)} entries; at most {MAX_OUTPUTS} are allowed")
    forward_ms, backward_ms = (_number(fields[name], path, place, name, 1e12) for name in names[:2])
    return _Layer(
        number=int(match[1]),
        kind="input" if re.fullmatch(r"input[0-9]*", kind) else kind,
        description=match[2],
        forward_s=forward_ms / 1000,
        backward_s=backward_ms / 1000,
        activations=tuple(math.ceil(_number(size, path, place, "activation_size", MAX_BYTES)) for size in several),
        parameter_bytes=math.ceil(_number(fields["parameter_size"], path, place, "parameter_size", MAX_BYTES)),
    )


def _number(text: str, path: object, place: str, name: str, high: float) -> float:
    """Return a number in [0, high]."""
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= value <= high:
        raise FileError(path, place, f"{name} is {text[:60]!r}; a number from 0 to {high:g} is allowed")
    return value


# ---- the graph ----------------------------------------------------------------------------------


class _Network:
    """Layers in program order, and what follows from how they are joined."""

    def __init__(self, layers: Sequence[_Layer], inputs: Sequence[Sequence[int]]) -> None:
        self.layers, self.inputs = layers, inputs
        self.forward = [layer.forward for layer in layers]
        self.backward = [layer.name("backward") for layer in layers]
        self.consumers: list[list[int]] = [[] for _ in layers]
        for v, row in enumerate(inputs):
            for u in row:
                self.consumers[u].append(v)
        self.storage = [self._storage(v) for v in range(len(layers))]
        self.trained = self._trained()
        self.gradients = [[u for u in row if self.trained[u]] for row in inputs]
        """For every layer, the inputs of which its backward makes a gradient, in order of output."""
        self.slots = [{u: k for k, u in enumerate(row)} for row in self.gradients]
        """For every layer, by input: which output of its backward is that gradient."""

    def _trained(self) -> list[bool]:
        """Return which layers have a backward: what learns, or stands between that and a loss, or took time."""
        layers = self.layers
        if not any(layer.backward_s for layer in layers):
            return [False] * len(layers)  # a profile of inference
        ends = [v for v, consumers in enumerate(self.consumers) if not consumers]
        losses = [v for v in ends if layers[v].kind not in PASSES_BY or layers[v].backward_s] or ends
        reaches = [False] * len(layers)
        for v in losses:
            reaches[v] = True
        for v in reversed(range(len(layers))):
            for u in self.inputs[v]:
                reaches[u] |= reaches[v]
        learns = [False] * len(layers)
        for v, layer in enumerate(layers):
            below = layer.parameter_bytes > 0 or any(learns[u] for u in self.inputs[v])
            learns[v] = below and layer.kind != "size" and not layer.is_input
        return [
            not layer.is_input and (layer.backward_s > 0 or (learns[v] and reaches[v]))
            for v, layer in enumerate(layers)
        ]

    def count(self) -> int:
        """Return how many tensors the layers make and read, in the forward pass alone."""
        made = sum(len(layer.activations) for layer in self.layers)
        return made + sum(len(self._read(u, v)) for v, row in enumerate(self.inputs) for u in row)

    def _read(self, u: int, v: int) -> range:
        """Return which outputs of layer u layer v reads: all, unless it picks one."""
        count = len(self.layers[u].activations)
        picked = re.match(r"__getitem__\(([0-9]{1,6})\)", self.layers[v].description)
        if picked and count > 1 and int(picked[1]) < count:
            return range(int(picked[1]), int(picked[1]) + 1)
        return range(count)

    def _storage(self, v: int) -> tuple[int, int] | None:
        """Return the (layer, output) whose bytes the only output of layer v shares, if any."""
        layer = self.layers[v]
        in_place = _writes_in_place(layer)
        if len(layer.activations) != 1 or not (layer.kind in VIEWS or in_place):
            return None
        for u in self.inputs[v]:
            read, source = self._read(u, v), self.layers[u]
            if len(read) != 1 or source.activations[read[0]] != layer.activations[0]:
                continue
            lost = source.is_input or len(source.activations) > 1 or len(self.consumers[u]) > 1
            if in_place and (lost or source.kind in (*VIEWS, *KEEPS_OUTPUT)):
                continue
            return u, read[0]
        return None

    def _activations(self, v: int) -> list[tuple[str, int]]:
        """Return the tensors that layer v reads."""
        return [(self.forward[u], k) for u in self.inputs[v] for k in self._read(u, v)]

    def _size(self, u: int, v: int) -> int:
        """Return the bytes of layer u that layer v reads."""
        return sum(self.layers[u].activations[k] for k in self._read(u, v))

    def forward_pass(self) -> list[Operation]:
        """Return parameters and forward operations, each parameter before its layer."""
        operations = []
        for v, layer in enumerate(self.layers):
            scope = f"node{layer.number}"
            reads: list[str | tuple[str, int]] = [*self._activations(v)]
            if layer.parameter_bytes:
                made_here = (Tensor(layer.parameter_bytes),)
                name = layer.name("parameter")
                operations.append(Operation(name, "parameter", "parameter", scope, outputs=made_here))
                reads.append(name)
            storage, in_place = self.storage[v], _writes_in_place(layer)
            base = None if storage is None else (self.forward[storage[0]], storage[1])
            kept = not self.consumers[v] and not any(self.trained)
            outputs = [
                Tensor(size, storage=base, in_place=base is not None and in_place, output=kept)
                for size in layer.activations
            ]
            quiet = layer.is_input or layer.kind in (*VIEWS, "size")
            moved = sum(self._size(u, v) for u in self.inputs[v]) + layer.parameter_bytes
            operations.append(
                Operation(
                    name=layer.forward,
                    kind=layer.kind,
                    phase="input" if layer.is_input else "forward",
                    scope=scope,
                    bytes_read=0 if quiet else moved,
                    bytes_written=0 if quiet else sum(layer.activations),
                    inputs=[] if layer.is_input else reads,
                    outputs=outputs,
                    measured_s={} if layer.is_input else {MODEL: layer.forward_s},
                )
            )
        return operations

    def backward_pass(self) -> list[Operation]:
        """Return backward operations from last to first, each followed by its update and store."""
        operations = []
        for v in reversed(range(len(self.layers))):
            if self.trained[v]:
                operations.append(self._backward(v))
                if self.layers[v].parameter_bytes:
                    operations += _update(self.layers[v], len(self.gradients[v]))
        return operations

    def _backward(self, v: int) -> Operation:
        """Return the backward operation of a layer."""
        layer = self.layers[v]
        reads: list[str | tuple[str, int]] = [
            (self.backward[w], self.slots[w][v]) for w in self.consumers[v] if self.trained[w]
        ]
        taken = sum(self._size(v, w) for w in self.consumers[v] if self.trained[w])
        own = [(self.forward[v], k) for k in range(len(layer.activations))]
        if not reads or layer.kind in KEEPS_OUTPUT:  # a loss is computed from the output
            reads += own
            taken += sum(layer.activations)
        if layer.kind not in (*KEEPS_OUTPUT, *KEEPS_NOTHING):
            reads += self._activations(v)
            taken += sum(self._size(u, v) for u in self.inputs[v])
        outputs = [Tensor(self._size(u, v)) for u in self.gradients[v]]
        if layer.parameter_bytes:
            reads.append(layer.name("parameter"))
            taken += layer.parameter_bytes
            outputs.append(Tensor(layer.parameter_bytes))
        quiet = layer.kind in VIEWS
        return Operation(
            name=layer.name("backward"),
            kind=f"{layer.kind}_backward",
            phase="backward",
            scope=f"node{layer.number}",
            bytes_read=0 if quiet else taken,
            bytes_written=0 if quiet else sum(tensor.bytes for tensor in outputs),
            inputs=reads,
            outputs=outputs,
            measured_s={MODEL: layer.backward_s},
        )


def _writes_in_place(layer: _Layer) -> bool:
    """Tell whether a description says `inplace` without denying it."""
    return re.search(r"\binplace\b(?!\s*=\s*False)", layer.description) is not None


def _update(layer: _Layer, gradient: int) -> list[Operation]:
    """Return the step of plain SGD on a layer's parameters, and the store of their new values."""
    scope, size, parameter = f"node{layer.number}", layer.parameter_bytes, layer.name("parameter")
    new = Tensor(size, storage=(parameter, 0), in_place=True)
    update = Operation(
        name=layer.name("update"),
        kind="sgd",
        phase="update",
        scope=scope,
        flops=size / 4 * 2,
        bytes_read=2 * size,
        bytes_written=size,
        inputs=[parameter, (layer.name("backward"), gradient)],
        after=[layer.forward, layer.name("backward")],
        outputs=[new],
    )
    return [update, Operation(layer.name("store"), "store", "store", scope, inputs=[update.name])]
