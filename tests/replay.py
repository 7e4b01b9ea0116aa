"""Plays a captured graph operation by operation, and holds it to what it says of storages and lifetimes.

Any order that the graph's edges allow must give the same numbers. Bytes are filled with garbage once the graph says
that nobody needs them, so a missing edge, or a lifetime that ends too early, shows as a wrong result.
"""

import heapq
import importlib
import operator
import random

import numpy as np
import torch

from placewright.capture import Captured, torch_private
from placewright.graph import FORWARD, INPUT, PARAMETER, STORE, UPDATE


def real_step(optimizer, parameter, gradient, states):
    """Update a parameter and its state in place, by torch's own functions; settings are torch's defaults."""
    name, lists = optimizer, [[state] for state in states]
    if name == "sgd":
        parameter.add_(gradient, alpha=-1e-3)
    elif name == "momentum":  # the first step of torch keeps the gradient as it is; momentum starts at zero here
        states[0].mul_(0.9).add_(gradient)
        parameter.add_(states[0], alpha=-1e-3)
    elif name in ("adam", "adamw"):
        step, first, second = lists
        functional = getattr(importlib.import_module(f"torch.optim.{name}"), name)
        functional(
            [parameter], [gradient], first, second, [], step, amsgrad=False, beta1=0.9, beta2=0.999, lr=1e-3,
            weight_decay=0.0 if name == "adam" else 1e-2, eps=1e-8, maximize=False,
        )  # fmt: skip
    else:
        step, *moments = lists
        rows, columns, variances = (
            (moments[0], moments[1], [None]) if len(moments) == 2 else ([None], [None], moments[0])
        )
        importlib.import_module("torch.optim._adafactor").adafactor(
            [parameter], [gradient], rows, columns, variances, step, d=1.0, lr=1e-2, beta2_decay=-0.8,
            weight_decay=0.0, eps1=None, eps2=1e-3, maximize=False,
        )  # fmt: skip


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


class Replay:
    """One run of a captured graph on real tensors."""

    def __init__(self, captured: Captured, model, leaves, optimizer=None):
        self.captured, self.graph, self.model, self.leaves = captured, captured.graph, model, leaves
        self.optimizer = optimizer
        self.values = {}
        """Of every traced node that has run, what it returned."""
        self.tensors = {}
        """The real tensor of every tensor of the graph that exists, by number."""
        self.node_of_input = {node: name for node, _, name in captured.traced.inputs}
        names = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
        names |= {name: attribute(model, name) for name in captured.traced.attributes if name in captured.held}
        self.held = {captured.held[name]: tensor.detach() for name, tensor in names.items()}
        self.constants = {}
        """Constants of the trace, by their names in it."""
        for node, role, name in captured.traced.inputs:
            if role in ("parameter", "buffer") and name in captured.held:
                self.values[node] = self.held[captured.held[name]]
        g = self.graph
        self.readers_left = np.diff(g.consumers[0]).astype(int)
        self.members = [[] for _ in range(g.n_tensors)]
        self.root = g.tensor_storage[g.tensor_storage].tolist()
        for t, root in enumerate(self.root):
            self.members[root].append(t)

    # ---- order -------------------------------------------------------------------------------

    def order(self, seed):
        """Program order, or with a seed a random order that the edges allow."""
        g = self.graph
        if seed is None:
            return range(g.n_ops)
        before = [set() for _ in range(g.n_ops)]
        for op, t in zip(g.read_op.tolist(), g.in_tensor.tolist(), strict=True):
            before[op].add(int(g.tensor_op[t]))
        waiting = np.repeat(np.arange(g.n_ops), np.diff(g.after_start))
        for op, other in zip(waiting.tolist(), g.after_op.tolist(), strict=True):
            before[op].add(other)
        left = [len(b) for b in before]
        after = [[] for _ in before]
        for op, row in enumerate(before):
            for other in row:
                after[other].append(op)
        rng = random.Random(seed)
        ready = [(rng.random(), op) for op, count in enumerate(left) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, op = heapq.heappop(ready)
            order.append(op)
            for other in after[op]:
                left[other] -= 1
                if not left[other]:
                    heapq.heappush(ready, (rng.random(), other))
        assert len(order) == g.n_ops
        return order

    def run(self, seed=None):
        """Play every operation; return the outputs of the model in their order, and the gradients by parameter."""
        wanted = {}
        final = {}
        with torch.no_grad():
            for i in self.order(seed):
                self.play(i)
                node = self.captured.nodes.get(self.graph.op_names[i])
                if node is not None:
                    self.values.setdefault(node, None)
                if self.graph.phase[i] == UPDATE:
                    continue
                self.release(i)
        for node, role, name in self.captured.traced.outputs:
            if role == "output":
                wanted[int(name)] = self.value(node)
            elif role == "gradient":
                final[self.captured.held[name]] = self.gradients[self.captured.held[name]]
        return [wanted[k] for k in sorted(wanted)], final

    gradients: dict

    # ---- one operation -----------------------------------------------------------------------

    def play(self, i):
        """Run one operation and check what it made."""
        g = self.graph
        name, phase = g.op_names[i], int(g.phase[i])
        node = self.captured.nodes.get(name)
        out = range(int(g.out_start[i]), int(g.out_start[i + 1]))
        if phase == PARAMETER:
            self.hold(name, node, out)
        elif phase == INPUT:
            self.values[node] = self.leaves[self.node_of_input[node]].clone()
            self.tensors[out[0]] = self.values[node]
        elif phase == UPDATE:
            self.update(i, out)
        elif phase == STORE:
            return
        elif g.kinds[i] == "ones_like" and node is not None and node.op == "placeholder":
            self.values[node] = torch.ones_like(node.meta["val"], device="cpu")
            self.values[node] = torch.ones(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            self.tensors[out[0]] = self.values[node]
        else:
            self.compute(i, node, out)
        self.check_storages(i, out)

    def hold(self, name, node, out):
        """Put what is persistent into place."""
        if name in self.held:
            self.tensors[out[0]] = self.held[name]
        elif node is not None:
            value = real_constant(getattr(self.captured.traced.module, node.target))
            self.values[node] = self.tensors[out[0]] = self.constants[node.target] = value
        else:  # the state of an optimiser: zeros
            for t in out:
                shape = self.graph.tensor_shapes[t]
                kind = torch.float32 if not shape else dict_of_dtypes[self.graph.dtypes[self.graph.op(name)]]
                self.tensors[t] = torch.zeros(shape, dtype=kind)

    def value(self, node):
        """What a traced node stands for now: a result, an element of one, or a view that costs nothing."""
        if node in self.values and self.values[node] is not None:
            return self.values[node]
        if node.op == "get_attr":
            return self.constants[node.target]
        if node.target is operator.getitem:
            return self.value(node.args[0])[node.args[1]]
        return self.call(node)

    def call(self, node):
        args = torch.fx.node.map_arg(node.args, self.value)
        kwargs = torch.fx.node.map_arg(node.kwargs, self.value)
        return node.target(*args, **kwargs)

    def compute(self, i, node, out):
        """Run the operator of one node; it may look only at what the graph says that it reads."""
        allowed = {self.root[t] for t in self.graph.in_tensor[self.graph.in_start[i] : self.graph.in_start[i + 1]]}
        known = {data(self.tensors[t]): t for t in allowed if t in self.tensors}
        for source in node.all_input_nodes:
            value = self.value(source)
            if isinstance(value, torch.Tensor) and value.numel():
                assert data(value) in known, f"{self.graph.op_names[i]} looks at {source}, which it does not read"
        result = self.call(node)
        self.values[node] = result
        made = [r for r in (result if isinstance(result, list | tuple) else [result]) if isinstance(r, torch.Tensor)]
        for t, tensor in zip(out, made, strict=False):
            self.tensors[t] = tensor
            assert tuple(tensor.shape) == self.graph.tensor_shapes[t], self.graph.op_names[i]

    def update(self, i, out):
        """Run an update, which must have nothing left to wait for."""
        g = self.graph
        reads = [int(t) for t in g.in_tensor[g.in_start[i] : g.in_start[i + 1]]]
        roots = [int(g.tensor_storage[t]) for t in out]
        parameter, states = self.tensors[roots[0]], [self.tensors[r] for r in roots[1:]]
        (gradient,) = [t for t in reads if int(self.root[t]) not in roots]
        value = self.gradient_of(i, gradient)
        owner = g.op_names[int(g.tensor_op[roots[0]])]
        self.gradients = {**getattr(self, "gradients", {}), owner: value.clone()}
        real_step(g.kinds[i], parameter, value, states)
        for t, root in zip(out, roots, strict=True):
            self.tensors[t] = self.tensors[root]

    def gradient_of(self, i, t):
        """Return the gradient as the traced graph returns it, which may be a view of the tensor that is read."""
        name = self.graph.op_names[int(self.graph.tensor_op[self.graph.tensor_storage[self.graph.out_start[i]]])]
        for node, role, parameter in self.captured.traced.outputs:
            if role == "gradient" and self.captured.held[parameter] == name:
                value = self.value(node)
                assert data(value) == data(self.tensors[self.root[t]])
                return value
        raise AssertionError(name)

    # ---- what the graph says of bytes --------------------------------------------------------

    def check_storages(self, i, out):
        """A tensor has the bytes that the graph says, of its own or in the storage that it names."""
        g = self.graph
        for t in out:
            if t not in self.tensors or not self.tensors[t].numel():
                continue
            tensor, root = self.tensors[t], self.root[t]
            if root == t:
                size = tensor.untyped_storage().nbytes()
                assert size == g.tensor_bytes[t], (g.op_names[i], size, g.tensor_bytes[t])
                others = [o for o, other in self.tensors.items() if o != t and self.root[o] == o and other.numel()]
                assert data(tensor) not in {data(self.tensors[o]) for o in others}, g.op_names[i]
            else:
                assert data(tensor) == data(self.tensors[root]), (g.op_names[i], g.op_names[g.tensor_op[root]])

    def release(self, i):
        """Fill with garbage whatever the graph says that nobody needs any more."""
        g = self.graph
        touched = {self.root[t] for t in range(int(g.out_start[i]), int(g.out_start[i + 1]))}
        for t in g.in_tensor[g.in_start[i] : g.in_start[i + 1]].tolist():
            self.readers_left[t] -= 1
            touched.add(self.root[t])
        for root in touched:
            alive = any(self.readers_left[t] or g.tensor_output[t] or t not in self.tensors for t in self.members[root])
            if not alive and not g.persistent[root] and root in self.tensors:
                poison(self.tensors.pop(root))
                for t in self.members[root]:
                    self.tensors.pop(t, None)


dict_of_dtypes = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def attribute(model, path):
    """The tensor that a model keeps at a path of attributes, keys and places."""
    found = model
    for word in path.split("."):
        if isinstance(found, dict):
            found = found[word] if word in found else found[int(word)]
        elif isinstance(found, list | tuple):
            found = found[int(word)]
        else:
            found = getattr(found, word)
    return found


def real_constant(value):
    """A constant of the traced graph as a real tensor."""
    return value.constant if torch_private.is_fake(value) and getattr(value, "constant", None) is not None else value


def data(tensor):
    """Where the bytes of a tensor are."""
    return tensor.untyped_storage().data_ptr()


def poison(tensor):
    """Fill the bytes of a tensor with ones, which is NaN for floating-point numbers."""
    storage = tensor.untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)


def eager_step(model, args, kwargs, optimizer, loss):
    """One step of torch itself: (loss or outputs, gradients, after which the model has its new values)."""
    step = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    out = model(*args, **kwargs)
    value = loss(out)
    value.backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    step.step()
    return value.detach(), grads


FORWARD_PHASE = FORWARD
