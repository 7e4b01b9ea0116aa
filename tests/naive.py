"""The slow twin of the simulator: section 2 of the design in plain Python, obvious before fast.

Written from the page alone, so that agreement with the kernel says that both read the page alike. The
sentences in quotation marks are the design's. Where it leaves a choice, the choice is marked READING.

    op i, j    tensor t    device d    pool p    channel c    transfer k
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from placewright.graph import INPUT, PARAMETER, STORE
from placewright.placement import DEFAULT_WINDOW, Placement
from placewright.problem import Problem

TransferRow = tuple[int, int, int, int, bool, int, int]
"""Tensor, source device, destination device, first consumer, is it a visit, start and end (-1: not simulated)."""


@dataclass
class Naive:
    """What a placement gives. `value_ps` and `step_end_ps` are None where there is nothing to say."""

    value_ps: int | None
    feasible: bool
    reason: str
    peak_bytes: list[int]
    over_bytes: list[int]
    device_busy_ps: list[int]
    channel_busy_ps: list[int]
    op_start_ps: list[int]
    op_end_ps: list[int]
    transfers: list[TransferRow]
    raised: list[bool]
    step_end_ps: int | None


@dataclass
class Transfer:
    """One copy of a tensor to one device: a transient's only one there, or one visit of a persistent one."""

    tensor: int
    source: int
    destination: int
    consumers: list[int]
    """The operations on the destination that it serves, in program order."""
    is_visit: bool
    ps: int = 0
    channels: list[int] = field(default_factory=list)
    copy_bytes: int = 0
    """What the received copy occupies."""
    start_ps: int = -1
    end_ps: int = -1

    @property
    def first(self) -> int:
        """The first consumer, by program order."""
        return self.consumers[0]

    @property
    def row(self) -> TransferRow:
        """As reported."""
        return self.tensor, self.source, self.destination, self.first, self.is_visit, self.start_ps, self.end_ps


def simulate(problem: Problem, placement: Placement) -> Naive:
    """What the placement gives under the problem's objective and discipline."""
    facts = Facts(problem, placement)
    result = Naive(
        value_ps=None,
        feasible=False,
        reason="",
        peak_bytes=[0] * len(facts.granule),
        over_bytes=[0] * len(facts.granule),
        device_busy_ps=[0] * facts.n_devices,
        channel_busy_ps=[0] * facts.n_channels,
        op_start_ps=[],
        op_end_ps=[],
        transfers=[],
        raised=[False] * facts.n_devices,
        step_end_ps=None,
    )
    # "Not simulated at all. A placement with an operation where its cost is infinite, or needing a missing
    # route, is infeasible with the reason and of infinite value."
    # READING 1: nothing else is said of such a placement: no bytes, no busy time, no windows raised.
    if any(math.isinf(facts.seconds[i][facts.device[i]]) for i in range(facts.n_ops)):
        result.reason = "cost"
        return result
    # READING 2: a tensor's own transfer_s does not stand in for a missing route.
    needed = {(facts.home[t], facts.device[i]) for i in range(facts.n_ops) for t in facts.reads[i] if facts.away(i, t)}
    if any(facts.rates(source, destination) is None for source, destination in sorted(needed)):
        result.reason = "route"
        return result

    visits, windows, result.raised = _visits(facts, placement)
    transfers = [*visits, *_transients(facts)]
    for k in transfers:
        k.ps = facts.transfer_ps(k.tensor, k.source, k.destination)
        k.channels = facts.route(k.source, k.destination)
        k.copy_bytes = facts.copy_bytes(k.tensor, k.destination)

    if problem.objective == "step":
        run = Run(facts, transfers, windows)
        run.run()
        result.value_ps = result.step_end_ps = run.now
        result.op_start_ps, result.op_end_ps = run.op_start, run.op_end
        result.peak_bytes = run.peak
    else:
        result.value_ps = _max_load(facts) if problem.objective == "max_load" else _throughput(facts, transfers)
        result.peak_bytes = _static_memory(facts, transfers)
    # READING 3: a device is busy with computation only, whatever the objective; the loads of max_load are
    # its value's affair. A transfer keeps each channel busy once, though its route meet it twice.
    result.device_busy_ps = _device_busy(facts)
    result.channel_busy_ps = [] if problem.objective == "max_load" else _channel_busy(facts, transfers)
    result.transfers = sorted(k.row for k in transfers)
    # "A pool's bytes are what the framework can allocate [...]. A peak above the pool never stops the
    # simulation; the outcome is infeasible and says by how many bytes, in which pool."
    for p, peak in enumerate(result.peak_bytes):
        result.over_bytes[p] = max(0, peak - facts.capacity[p])
    result.feasible = not any(result.over_bytes)
    result.reason = "" if result.feasible else "memory"
    return result


class Facts:
    """Problem and placement as plain lists, and the rules that need no clock."""

    def __init__(self, problem: Problem, placement: Placement) -> None:
        graph, machine = problem.graph, problem.machine
        self.discipline = problem.discipline
        self.machine = machine
        self.n_ops = graph.n_ops
        self.n_tensors = graph.n_tensors
        self.n_devices = len(machine.devices)
        self.n_channels = len(machine.channels)
        self.device = [int(d) for d in placement.devices]
        self.priority = [0.0] * self.n_ops  # READING 4: without priorities all are equal
        if placement.priorities is not None:
            self.priority = [float(x) for x in placement.priorities]
        self.seconds = [[float(s) for s in row] for row in problem.costs.seconds]
        self.phase = [int(x) for x in graph.phase]
        self.workspace = [int(x) for x in graph.workspace_bytes]
        self.reads = [
            [int(t) for t in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]]] for i in range(self.n_ops)
        ]
        self.makes = [list(range(int(graph.out_start[i]), int(graph.out_start[i + 1]))) for i in range(self.n_ops)]
        self.after = [
            [int(j) for j in graph.after_op[graph.after_start[i] : graph.after_start[i + 1]]] for i in range(self.n_ops)
        ]
        self.maker = [i for i in range(self.n_ops) for _ in self.makes[i]]
        self.consumers: list[list[int]] = [[] for _ in range(self.n_tensors)]
        for i in range(self.n_ops):
            for t in self.reads[i]:
                self.consumers[t].append(i)
        self.bytes = [int(x) for x in graph.tensor_bytes]
        self.storage = [int(x) for x in graph.tensor_storage]
        self.persistent = [bool(x) for x in graph.persistent]
        self.new_value = [bool(x) for x in graph.detachable]
        self.output = [bool(x) for x in graph.tensor_output]
        self.transfer_s = [float(x) for x in graph.tensor_transfer_s]
        self.pool = list(machine.pool_of)
        self.granule = [pool.granule_bytes for pool in machine.pools]
        self.capacity = [pool.capacity_bytes for pool in machine.pools]
        self.is_host = [device.is_host for device in machine.devices]
        # The home of a tensor: where its maker runs, the parameter operation of a persistent one included.
        self.home = [self.device[self.maker[t]] for t in range(self.n_tensors)]

    def off_queue(self, i: int) -> bool:
        """Operations of phase `parameter`, `input` and `store` are on no device's queue."""
        return self.phase[i] in (INPUT, PARAMETER, STORE)

    def cost_ps(self, i: int) -> int:
        """Time is int64 picoseconds. Each cost is rounded once, half to even."""
        return _ps(self.seconds[i][self.device[i]])

    def away(self, i: int, t: int) -> bool:
        """Must the tensor travel for the operation? Within one pool nothing is sent or copied."""
        return self.pool[self.home[t]] != self.pool[self.device[i]]

    def rates(self, source: int, destination: int) -> tuple[float, float] | None:
        """Sum of latencies and smallest bandwidth (a channel met twice counts with half) of the route."""
        return self.machine.rates(source, destination)

    def route(self, source: int, destination: int) -> list[int]:
        """The channels that a transfer occupies, each named once."""
        return sorted(set(self.machine.route(source, destination) or ()))

    def transfer_ps(self, t: int, source: int, destination: int) -> int:
        """The sum of their latencies + bytes / smallest bandwidth, or the tensor's own transfer_s."""
        if not math.isnan(self.transfer_s[t]):
            return _ps(self.transfer_s[t])
        rates = self.rates(source, destination)
        assert rates is not None
        latency_s, bytes_per_s = rates
        return _ps(latency_s + self.bytes[t] / bytes_per_s)

    def rounded(self, size: int, p: int) -> int:
        """Sizes are rounded up to the pool's granule."""
        # READING 5: every size: a tensor's, a copy's, an operation's workspace, and what a window counts
        # (which bounds what the device holds of its pool). The given window itself is not rounded.
        return -(-size // self.granule[p]) * self.granule[p]

    def root(self, t: int) -> int:
        """The tensor whose bytes hold this one, as placed: itself, its base, or a persistent tensor.

        "A view, or an output written in place, occupies nothing on the device of its storage." "An update's
        new values are in place on their parameter and state; computed on another device they are transient."
        """
        if self.storage[t] == t:
            return t
        # READING 6: "another device" is a device of another pool than the parameter's: within one pool the
        # new values are in place.
        if self.new_value[t] and self.pool[self.home[t]] != self.pool[self.home[self.storage[t]]]:
            return t
        return self.root(self.storage[t])

    def copy_bytes(self, t: int, d: int) -> int:
        """What the copy of a tensor occupies on a device that receives it: "a tensor of its own bytes"."""
        # "What a store receives is written over the parameter and occupies nothing."
        # READING 7: there is one copy per device; where a store is among its readers it occupies nothing.
        if any(self.device[i] == d and self.phase[i] == STORE for i in self.consumers[t]):
            return 0
        return self.rounded(self.bytes[t], self.pool[d])


def _ps(seconds: float) -> int:
    return round(seconds * 1e12)


# Streaming ----------------------------------------------------------------------------------------------------


def _visits(facts: Facts, placement: Placement) -> tuple[list[Transfer], list[int], list[bool]]:
    """Every visit of a persistent tensor to a device, the devices' windows, and which of them were raised."""
    visits: list[Transfer] = []
    windows: list[int] = []  # under `stream` only
    raised: list[bool] = []
    for d in range(facts.n_devices):
        # "The persistent tensors that device d borrows", by operation of d in program order.
        # READING 8: d's operations are all that are placed there, those off the queue included.
        borrowed: dict[int, list[int]] = {}
        for i in range(facts.n_ops):
            if facts.device[i] == d:
                borrowed[i] = [t for t in facts.reads[i] if facts.persistent[t] and facts.away(i, t)]
        if facts.discipline != "stream":
            # "`ready` and `priority` have no window and one visit per destination."
            served: dict[int, list[int]] = {}
            for i, inputs in borrowed.items():
                for t in inputs:
                    served.setdefault(t, []).append(i)
            raised.append(False)
            rows = list(served.items())
        else:
            asked = DEFAULT_WINDOW if placement.windows_bytes is None else int(placement.windows_bytes[d])
            window, was_raised = _window(facts, d, borrowed, asked)
            windows.append(window)
            raised.append(was_raised)
            rows = _walk(facts, d, borrowed, window)
        visits += [Transfer(t, facts.home[t], d, consumers, is_visit=True) for t, consumers in rows]
    return visits, windows, raised


def _window(facts: Facts, d: int, borrowed: dict[int, list[int]], asked: int) -> tuple[int, bool]:
    """The window of a device, and whether it was raised."""

    def size(t: int) -> int:
        return facts.rounded(facts.bytes[t], facts.pool[d])

    # "A window below the largest sum of borrowed inputs of one operation on d is raised to that sum, and the
    # outcome says so [...]. Default: that minimum plus the largest tensor borrowed there."
    minimum = max((sum(size(t) for t in inputs) for inputs in borrowed.values()), default=0)
    largest = max((size(t) for inputs in borrowed.values() for t in inputs), default=0)
    if asked == DEFAULT_WINDOW:
        return minimum + largest, False
    return max(asked, minimum), asked < minimum


def _walk(facts: Facts, d: int, borrowed: dict[int, list[int]], window: int) -> list[tuple[int, list[int]]]:
    """The visits to a device under `stream`, each a tensor and the consumers that the visit serves."""

    def size(t: int) -> int:
        return facts.rounded(facts.bytes[t], facts.pool[d])

    # "Visits are fixed before the run: walk d's operations in program order with a list of borrowed tensors"
    visits: list[tuple[int, list[int]]] = []
    listed: dict[int, list[int]] = {}  # tensor to the consumers that its visit serves so far
    last_use: dict[int, int] = {}
    for i, inputs in borrowed.items():
        # "each borrowed input not listed begins a visit"
        for t in inputs:
            if t not in listed:
                listed[t] = []
                visits.append((t, listed[t]))
            # "A visit serves the consumers up to its drop."
            listed[t].append(i)
            last_use[t] = i
        # "then, while the listed bytes exceed the window, drop the tensor least recently used (ties: lower
        # index) that is not an input of this operation"
        while sum(size(t) for t in listed) > window:
            _, dropped = min((last_use[t], t) for t in listed if t not in inputs)
            del listed[dropped]
        # "a tensor without a later consumer on d is dropped after its last"
        for t in inputs:
            if not any(i < j and t in borrowed[j] for j in borrowed):
                del listed[t]
    return visits


def _transients(facts: Facts) -> list[Transfer]:
    """Every transfer of a tensor that is not persistent."""
    # "A transient tensor needed on a device of another pool travels once per destination device, always from
    # its home, however many consumers it has there."
    # READING 9: so two devices of one pool each receive a copy of their own.
    rows: list[Transfer] = []
    for t in range(facts.n_tensors):
        if facts.persistent[t]:
            continue
        served: dict[int, list[int]] = {}
        for i in facts.consumers[t]:
            if facts.away(i, t):
                served.setdefault(facts.device[i], []).append(i)
        rows += [Transfer(t, facts.home[t], d, consumers, is_visit=False) for d, consumers in served.items()]
    return rows


# The loads: sums, without simulation ----------------------------------------------------------------------------


def _device_busy(facts: Facts) -> list[int]:
    busy = [0] * facts.n_devices
    for i in range(facts.n_ops):
        busy[facts.device[i]] += facts.cost_ps(i)
    return busy


def _channel_busy(facts: Facts, transfers: list[Transfer]) -> list[int]:
    busy = [0] * facts.n_channels
    for k in transfers:
        for c in k.channels:
            busy[c] += k.ps
    return busy


def _max_load(facts: Facts) -> int:
    """The largest load of a device."""
    # "its computation + each tensor that it receives, once + each tensor of its own needed elsewhere, once in
    # all; a device marked `host` is charged computation only"
    load = _device_busy(facts)
    for t in range(facts.n_tensors):
        home = facts.home[t]
        elsewhere = sorted({facts.device[i] for i in facts.consumers[t] if facts.away(i, t)})
        times = {d: facts.transfer_ps(t, home, d) for d in elsewhere}
        for d in elsewhere:
            if not facts.is_host[d]:
                load[d] += times[d]
        # READING 10: where its routes differ in time, the largest counts.
        if elsewhere and not facts.is_host[home]:
            load[home] += max(times.values())
    return max(load)


def _throughput(facts: Facts, transfers: list[Transfer]) -> int:
    """The largest busy time of any device or channel, counting every transfer and visit."""
    return max([*_device_busy(facts), *_channel_busy(facts, transfers)])


def _static_memory(facts: Facts, transfers: list[Transfer]) -> list[int]:
    """Memory of the loads, per pool."""
    # "their memory is persistent tensors at home + the largest set of visits held at any operation + the
    # largest single operation"
    # READING 11: the devices of one pool add up their largest sets of visits and their largest operations.
    memory = _persistent_bytes(facts)
    for d in range(facts.n_devices):
        here = [i for i in range(facts.n_ops) if facts.device[i] == d]
        # READING 12: a visit is held at the operations of d from its first to its last consumer in program
        # order, under every discipline ("held until the last of them ends"), not until it is dropped.
        visits = [k for k in transfers if k.is_visit and k.destination == d]
        held = [sum(k.copy_bytes for k in visits if k.first <= i <= k.consumers[-1]) for i in here]
        memory[facts.pool[d]] += max(held, default=0)
        memory[facts.pool[d]] += max((_op_bytes(facts, i) for i in here), default=0)
    return memory


def _persistent_bytes(facts: Facts) -> list[int]:
    """Persistent tensors occupy their home pool for the whole step."""
    memory = [0] * len(facts.granule)
    for t in range(facts.n_tensors):
        if facts.persistent[t]:
            p = facts.pool[facts.home[t]]
            memory[p] += facts.rounded(facts.bytes[t], p)
    return memory


def _op_bytes(facts: Facts, i: int) -> int:
    """Workspace of an operation + the distinct storages of the transient tensors that it reads or makes."""
    d = facts.device[i]
    p = facts.pool[d]
    local: set[int] = set()
    total = facts.rounded(facts.workspace[i], p)
    for t in [*facts.reads[i], *facts.makes[i]]:
        if facts.away(i, t):
            if not facts.persistent[t]:  # a borrowed one is in the set of visits
                total += facts.copy_bytes(t, d)
        elif not facts.persistent[facts.root(t)]:
            local.add(facts.root(t))
    return total + sum(facts.rounded(facts.bytes[t], p) for t in sorted(local))


# The step: simulated ----------------------------------------------------------------------------------------------


class Run:
    """One step, in rounds."""

    def __init__(self, facts: Facts, transfers: list[Transfer], windows: list[int]) -> None:
        self.facts = facts
        self.transfers = transfers
        self.windows = windows
        self.now = 0
        self.round = 0
        self.op_start = [-1] * facts.n_ops
        self.op_end = [-1] * facts.n_ops
        # What each operation and each transfer still waits for: ("op", i) or ("transfer", k).
        self.op_waits: list[set[tuple[str, int]]] = [set() for _ in range(facts.n_ops)]
        self.transfer_waits: list[set[tuple[str, int]]] = [{("op", facts.maker[k.tensor])} for k in transfers]
        self.op_ready_round = [-1] * facts.n_ops
        self.transfer_ready_round = [-1] * len(transfers)
        self.serves: dict[tuple[int, int], int] = {}  # (operation, tensor from another pool) to its transfer
        for k, transfer in enumerate(transfers):
            for i in transfer.consumers:
                self.serves[i, transfer.tensor] = k
        for i in range(facts.n_ops):
            for t in facts.reads[i]:
                self.op_waits[i].add(("transfer", self.serves[i, t]) if facts.away(i, t) else ("op", facts.maker[t]))
            # "An edge may carry *order only*: its consumer waits for the producer's end and nothing travels."
            for j in facts.after[i]:
                self.op_waits[i].add(("op", j))
        self.running: list[int | None] = [None] * facts.n_devices  # "a device runs one operation at a time"
        self.channel_taken = [False] * facts.n_channels  # "a channel carries one transfer at a time"
        self.pending: list[tuple[int, str, int]] = []  # (end, "op" or "transfer", which)
        self._start_memory()
        # Under `stream`: "each device runs its operations in program order".
        self.program = [
            [i for i in range(facts.n_ops) if facts.device[i] == d and not facts.off_queue(i)]
            for d in range(facts.n_devices)
        ]
        # Under `stream`: "every route has two fixed queues, visits and transients, each in order of (first
        # consumer, tensor)", and "visits to d start strictly in order of (first consumer, tensor)".
        self.queues: dict[tuple[int, int, bool], list[int]] = {}
        self.visits_to: list[list[int]] = [[] for _ in range(facts.n_devices)]
        for k in sorted(range(len(transfers)), key=lambda k: (transfers[k].first, transfers[k].tensor)):
            transfer = transfers[k]
            self.queues.setdefault((transfer.source, transfer.destination, transfer.is_visit), []).append(k)
            if transfer.is_visit:
                self.visits_to[transfer.destination].append(k)

    # Rounds

    def run(self) -> None:
        """Simulate to the end of the step."""
        while True:
            # "(1) apply all ends at the earliest pending time, freeing memory and making operations and transfers
            # ready". In the first round nothing is pending, and what waits for nothing becomes ready.
            self._apply_ends()
            self._sample()
            # "(2) each idle device, in index order, starts at most one operation"
            for d in range(self.facts.n_devices):
                i = self._next_op(d) if self.running[d] is None else None
                if i is not None:
                    self._start_op(i)
                    self._sample()
            # "(3) repeatedly start the best transfer that can start, until none can"
            while (k := self._best_transfer()) is not None:
                self._start_transfer(k)
                self._sample()
            if not self.pending:
                break
            # "Events of zero length make another round at the same time."
            self.round += 1
            self.now = min(end for end, _, _ in self.pending)
        assert all(end >= 0 for end in self.op_end), "the step stalled"
        assert all(k.end_ps >= 0 for k in self.transfers), "the step stalled"

    def _apply_ends(self) -> None:
        ended = [event for event in self.pending if event[0] == self.now]
        self.pending = [event for event in self.pending if event[0] != self.now]
        for _, kind, which in ended:
            if kind == "op":
                self.running[self.facts.device[which]] = None
                self._end_op(which)
            else:
                self._end_transfer(which)
        if self.round == 0:
            for i in range(self.facts.n_ops):
                if self.op_end[i] < 0:
                    self._maybe_ready(i)

    def _end_op(self, i: int) -> None:
        self.op_end[i] = self.now
        self._free_after_op(i)
        self._happened(("op", i))

    def _end_transfer(self, k: int) -> None:
        transfer = self.transfers[k]
        transfer.end_ps = self.now
        for c in transfer.channels:
            self.channel_taken[c] = False
        self._let_go(transfer.tensor, ("sent", k))
        self._happened(("transfer", k))

    def _happened(self, event: tuple[str, int]) -> None:
        """Tell all who wait for it."""
        for k, waits in enumerate(self.transfer_waits):
            if event in waits:
                waits.discard(event)
                self.transfer_ready_round[k] = self.round
        for i, ops in enumerate(self.op_waits):
            if event in ops:
                ops.discard(event)
                self._maybe_ready(i)

    def _maybe_ready(self, i: int) -> None:
        if self.op_waits[i] or self.op_ready_round[i] >= 0:
            return
        # "Ready keys are (round in which it became ready, index), never time alone."
        self.op_ready_round[i] = self.round
        # "Operations of phase `parameter`, `input` and `store` [...] end in the round in which their inputs are
        # there."
        # READING 13: in step (1) of that round, so that what they make is there in the same step (1); order-only
        # edges are waited for as inputs are.
        if self.facts.off_queue(i):
            self.op_start[i] = self.now
            self._take_for_op(i)
            self._end_op(i)

    # Operations

    def _next_op(self, d: int) -> int | None:
        """The operation that an idle device starts now, if any."""
        if self.facts.discipline == "stream":
            # "each device runs its operations in program order": the next one or none
            rest = [i for i in self.program[d] if self.op_start[i] < 0]
            return rest[0] if rest and self.op_ready_round[rest[0]] >= 0 else None
        ready = [i for i in self.program[d] if self.op_start[i] < 0 and self.op_ready_round[i] >= 0]
        if not ready:
            return None
        if self.facts.discipline == "ready":
            # "least (round ready, index) first"
            return min(ready, key=lambda i: (self.op_ready_round[i], i))
        # "the ready operation of larger priority, ties by index"
        return min(ready, key=lambda i: (-self.facts.priority[i], i))

    def _start_op(self, i: int) -> None:
        self.running[self.facts.device[i]] = i
        self.op_start[i] = self.now
        self._take_for_op(i)
        self.pending.append((self.now + self.facts.cost_ps(i), "op", i))

    # Transfers

    def _best_transfer(self) -> int | None:
        stream = self.facts.discipline == "stream"
        heads = self._fixed_heads() if stream else self._ready_heads()
        # "A transfer takes all channels of its route at once or none."
        able = [k for k in heads if not any(self.channel_taken[c] for c in self.transfers[k].channels)]

        def order(k: int) -> tuple[int, int, int]:
            # `stream`: "among heads that can, the least (first consumer, tensor, destination) goes first";
            # the others: "among heads the least (round, tensor, destination) goes first"
            transfer = self.transfers[k]
            key = transfer.first if stream else self.transfer_ready_round[k]
            return key, transfer.tensor, transfer.destination

        return min(able, key=order, default=None)

    def _fixed_heads(self) -> list[int]:
        """Under `stream`: the heads of the routes' queues that could start but for their channels."""
        heads = []
        for queue in self.queues.values():
            rest = [k for k in queue if self.transfers[k].start_ps < 0]
            # "only heads may start"
            if not rest or self.transfer_ready_round[rest[0]] < 0:
                continue
            head = self.transfers[rest[0]]
            if head.is_visit:
                d = head.destination
                # "Visits to d start strictly in order of (first consumer, tensor), each only if the bytes in
                # flight or held on d, this one included, fit the window."
                unstarted = [k for k in self.visits_to[d] if self.transfers[k].start_ps < 0]
                if unstarted[0] != rest[0] or self.held[d] + head.copy_bytes > self.windows[d]:
                    continue
            heads.append(rest[0])
        return heads

    def _ready_heads(self) -> list[int]:
        """Under `ready` and `priority`: "a route has one queue by (round ready, tensor)"."""
        heads: dict[tuple[int, int], int] = {}
        for k, transfer in enumerate(self.transfers):
            if transfer.start_ps >= 0 or self.transfer_ready_round[k] < 0:
                continue
            route = transfer.source, transfer.destination
            key = self.transfer_ready_round[k], transfer.tensor
            if route in heads:
                other = heads[route]
                if (self.transfer_ready_round[other], self.transfers[other].tensor) < key:
                    continue
            heads[route] = k
        return list(heads.values())

    def _start_transfer(self, k: int) -> None:
        transfer = self.transfers[k]
        transfer.start_ps = self.now
        for c in transfer.channels:
            self.channel_taken[c] = True
        # "a received copy from the start of its transfer"
        self.used[self.facts.pool[transfer.destination]] += transfer.copy_bytes
        if transfer.is_visit:
            self.held[transfer.destination] += transfer.copy_bytes
        # "is never interrupted"
        self.pending.append((self.now + transfer.ps, "transfer", k))

    # Memory

    def _start_memory(self) -> None:
        """Note who keeps what: bytes are freed when nobody is left."""
        facts = self.facts
        # "Persistent tensors occupy their home pool for the whole step." "A step begins with empty windows."
        self.used = _persistent_bytes(facts)
        self.peak = [0] * len(self.used)
        self.held = [0] * facts.n_devices
        # "A transient tensor occupies its pool [...] until its last consumer there and its last outgoing
        # transfer have ended"; a view "keeps that storage alive": whoever needs a view needs its storage.
        self.keepers: dict[int, set[tuple[str, int]]] = {}
        for t in range(facts.n_tensors):
            root = facts.root(t)
            if facts.persistent[root]:
                continue
            # "any other tensor without consumers dies with its operation"
            keepers = self.keepers.setdefault(root, set())
            keepers.add(("made", facts.maker[t]))
            # READING 14: consumers "there" are those on any device of the home's pool.
            # "An operation that reads a tensor twice consumes it once."
            keepers.update(("read", i) for i in facts.consumers[t] if not facts.away(i, t))
            # "A tensor marked `output` lives to the end of the step", at its home; its copies do not.
            if facts.output[t]:
                keepers.add(("output", t))
        for k, transfer in enumerate(self.transfers):
            root = facts.root(transfer.tensor)
            if not facts.persistent[root]:
                self.keepers[root].add(("sent", k))
        # "a received copy [...] until its last consumer there (of that visit) has ended"
        self.copy_keepers = [set(transfer.consumers) for transfer in self.transfers]

    def _sample(self) -> None:
        """Peaks are taken after every start."""
        # READING 15: and when step (1) of a round is complete, but not within it.
        self.peak = [max(peak, used) for peak, used in zip(self.peak, self.used, strict=True)]

    def _take_for_op(self, i: int) -> None:
        """From the start of its operation: what it makes, and workspace."""
        p = self.facts.pool[self.facts.device[i]]
        self.used[p] += self._workspace(i)
        for t in self.facts.makes[i]:
            if t in self.keepers:  # it has bytes of its own and is transient
                self.used[p] += self.facts.rounded(self.facts.bytes[t], p)

    def _free_after_op(self, i: int) -> None:
        facts = self.facts
        d = facts.device[i]
        self.used[facts.pool[d]] -= self._workspace(i)
        for t in facts.makes[i]:
            self._let_go(t, ("made", i))
        for t in facts.reads[i]:
            if not facts.away(i, t):
                self._let_go(t, ("read", i))
                continue
            k = self.serves[i, t]
            self.copy_keepers[k].discard(i)
            if not self.copy_keepers[k]:
                self.used[facts.pool[d]] -= self.transfers[k].copy_bytes
                if self.transfers[k].is_visit:
                    self.held[d] -= self.transfers[k].copy_bytes

    def _let_go(self, t: int, keeper: tuple[str, int]) -> None:
        """One keeper less of the storage of a tensor; without any it is freed."""
        root = self.facts.root(t)
        keepers = self.keepers.get(root)
        if not keepers:  # persistent, or freed before through another of its views
            return
        keepers.discard(keeper)
        if not keepers:
            p = self.facts.pool[self.facts.home[root]]
            self.used[p] -= self.facts.rounded(self.facts.bytes[root], p)

    def _workspace(self, i: int) -> int:
        return self.facts.rounded(self.facts.workspace[i], self.facts.pool[self.facts.device[i]])
