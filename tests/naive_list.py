"""The slow twin of list scheduling: docs/algorithms/list-scheduling.md and baechi.md in plain Python.

Written from the pages alone. Sentences in quotation marks are theirs. Times are floats that hold whole picoseconds.

    i an operation    g a unit (a group, or several joined)    d a device    p a pool
"""

from __future__ import annotations

from dataclasses import dataclass

from placewright.graph import PARAMETER
from placewright.problem import Problem

FAR = 1e30
"""Where no route leads, a transfer takes 10^30 ps."""


class StuckError(Exception):
    """No device is left for a unit."""

    def __init__(self, unit: int) -> None:
        self.unit = unit
        super().__init__(unit)


@dataclass
class Edge:
    """What operation `reader` waits for: a tensor of `maker`, or nothing but its end."""

    maker: int
    reader: int
    bytes: int = 0
    fixed_ps: float | None = None
    order_only: bool = False


class Twin:
    """One problem, and one schedule of it by `heft`, `cpop` or `etf`."""

    def __init__(self, problem, unit_of=None, choices=None, first=None, favourite=None):
        graph, machine = problem.graph, problem.machine
        self.problem, self.machine = problem, machine
        self.n, self.devices = graph.n_ops, range(problem.n_devices)
        unit_of = list(range(problem.n_groups)) if unit_of is None else unit_of
        self.unit = [int(unit_of[g]) for g in problem.groups]
        self.choices = [[bool(x) for x in row] for row in (problem.choices if choices is None else choices)]
        self.first = self.choices if first is None else [[bool(x) for x in row] for row in first]
        self.favourite = [-1] * self.n if favourite is None else list(favourite)
        self.off = [bool(x) for x in graph.off_queue]
        self.cost = [[float(round(s * 1e12)) if s < float("inf") else FAR for s in row.tolist()]
                     for row in problem.costs.seconds]  # fmt: skip
        self.edges = []
        for i in range(self.n):
            for t in graph.in_tensor[graph.in_start[i] : graph.in_start[i + 1]].tolist():
                own = float(graph.tensor_transfer_s[t])
                fixed = None if own != own else float(round(own * 1e12))
                self.edges.append(Edge(int(graph.tensor_op[t]), i, int(graph.tensor_bytes[t]), fixed))
            for other in graph.after_op[graph.after_start[i] : graph.after_start[i + 1]].tolist():
                self.edges.append(Edge(other, i, order_only=True))
        self.into = [[] for _ in range(self.n)]
        self.out_of = [[] for _ in range(self.n)]
        for edge in self.edges:
            self.into[edge.reader].append(edge)
            self.out_of[edge.maker].append(edge)
        self.rates = [[machine.rates(a, b) for b in self.devices] for a in self.devices]
        self._find_passive()
        self._find_separations()
        self._find_bytes()
        # One schedule.
        self.decided = [None] * len(self.choices)
        self.start, self.finish = [0.0] * self.n, [0.0] * self.n
        self.scheduled = [False] * self.n

    def _find_passive(self):
        """It takes no time where its unit may be, and waits for nothing but passive operations of its own unit."""
        self.passive = []
        for i in range(self.n):
            timeless = all(self.cost[i][d] == 0 for d in self.devices if self.choices[self.unit[i]][d])
            inside = all(self.passive[e.maker] and self.unit[e.maker] == self.unit[i] for e in self.into[i])
            self.passive.append(timeless and inside)

    def _find_separations(self):
        self.apart = []
        for a, b in self.problem.separated:
            one, two = {self.unit[i] for i in a.tolist()}, {self.unit[i] for i in b.tolist()}
            self.apart += [(one, two), (two, one)]

    def _find_bytes(self):
        """Persistent bytes, those alive at the peak besides, and the neediest operation's others, by unit and pool."""
        graph = self.problem.graph
        tensors = range(graph.n_tensors)
        persistent = [graph.phase[graph.tensor_op[t]] == PARAMETER for t in tensors]
        own = [graph.tensor_storage[t] == t and not persistent[t] for t in tensors]
        born = [int(graph.tensor_op[t]) for t in tensors]
        dies = list(born)

        def owner_of(t):
            while graph.tensor_storage[t] != t:
                t = int(graph.tensor_storage[t])
            return t

        for t, i in zip(graph.in_tensor.tolist(), graph.read_op.tolist(), strict=True):
            dies[owner_of(t)] = max(dies[owner_of(t)], i)
        for t in tensors:
            dies[owner_of(t)] = max(dies[owner_of(t)], self.n if graph.tensor_output[t] else born[t])
        births, deaths = [[] for _ in range(self.n + 2)], [[] for _ in range(self.n + 2)]
        for t in tensors:
            if own[t]:
                births[born[t]].append(t)
                deaths[dies[t] + 1].append(t)
        total, most, peak = 0, -1, 0
        for moment in range(self.n + 1):
            total += sum(int(graph.tensor_bytes[t]) for t in births[moment])
            total -= sum(int(graph.tensor_bytes[t]) for t in deaths[moment])
            if total > most:
                most, peak = total, moment
        alive = [own[t] and born[t] <= peak <= dies[t] for t in tensors]
        pools = self.machine.pools
        self.persistent = [[0] * len(pools) for _ in self.choices]
        self.full = [[0] * len(pools) for _ in self.choices]
        self.besides = [[0] * len(pools) for _ in self.choices]
        for p, pool in enumerate(pools):

            def rounded(size, granule=pool.granule_bytes):
                return -(-int(size) // granule) * granule

            needs = [rounded(w) for w in graph.workspace_bytes]
            for t in tensors:
                g, size = self.unit[born[t]], rounded(graph.tensor_bytes[t])
                self.persistent[g][p] += size * persistent[t]
                self.full[g][p] += size * (persistent[t] or alive[t])
                needs[born[t]] += size * (own[t] and not alive[t])
            for i in range(self.n):
                self.besides[self.unit[i]][p] = max(self.besides[self.unit[i]][p], needs[i])
        self.used_persistent, self.used_full, self.used_besides = ([0] * len(pools) for _ in range(3))

    # Ranks

    def mean_cost(self, i):
        if self.passive[i]:
            return 0.0
        few = [self.cost[i][d] for d in self.devices if self.first[self.unit[i]][d]]
        return sum(few) / len(few)

    def mean_transfer(self, edge):
        """Over "all ordered pairs of different devices that any operation may use and that a route joins"."""
        if edge.order_only or self.passive[edge.maker]:
            return 0.0
        used = [d for d in self.devices if any(row[d] for row in self.first)]
        times = [self.transfer(edge, a, b) for a in used for b in used if a != b and self.rates[a][b] is not None]
        return sum(times) / len(times) if times else 0.0

    def upward(self, transfers=True):
        rank = [0.0] * self.n
        for i in reversed(range(self.n)):
            after = [(self.mean_transfer(e) if transfers else 0.0) + rank[e.reader] for e in self.out_of[i]]
            rank[i] = self.mean_cost(i) + max(after, default=0.0)
        return rank

    def downward(self):
        rank = [0.0] * self.n
        for i in range(self.n):
            before = [rank[e.maker] + self.mean_cost(e.maker) + self.mean_transfer(e) for e in self.into[i]]
            rank[i] = max(before, default=0.0)
        return rank

    # Where a unit may be, when inputs are there, what fits

    def transfer(self, edge, source, target):
        if edge.order_only or self.machine.pool_of[source] == self.machine.pool_of[target]:
            return 0.0
        if self.rates[source][target] is None:
            return FAR
        if edge.fixed_ps is not None:
            return edge.fixed_ps
        latency, rate = self.rates[source][target]
        return float(round((latency + edge.bytes / rate) * 1e12))

    def may(self, g, d):
        shut = any(g in one and any(self.decided[other] == d for other in two) for one, two in self.apart)
        return self.choices[g][d] and not shut

    def is_open(self, i, d):
        g = self.unit[i]
        return self.may(g, d) if self.decided[g] is None else self.decided[g] == d

    def arrival(self, i, d):
        latest = 0.0
        for edge in self.into[i]:
            g = self.unit[edge.maker]
            if self.decided[g] is not None:
                at = self.finish[edge.maker] + self.transfer(edge, self.decided[g], d)
            elif self.may(g, d):
                at = 0.0
            else:
                at = min([FAR, *(self.transfer(edge, s, d) for s in self.devices if self.may(g, s))])
            latest = max(latest, at)
        return latest

    def tier_of(self, units, d):
        if not units:
            return 0
        p = self.machine.pool_of[d]
        room = self.machine.pools[p].capacity_bytes
        full = self.used_full[p] + sum(self.full[g][p] for g in units)
        besides = max(self.used_besides[p], *(self.besides[g][p] for g in units))
        if full + besides <= room:
            return 0
        held = self.used_persistent[p] + sum(self.persistent[g][p] for g in units)
        return 1 if held <= room else 2

    def tier(self, i, d):
        units = dict.fromkeys([self.unit[i], *(self.unit[e.maker] for e in self.into[i])])
        return self.tier_of([g for g in units if self.decided[g] is None and self.may(g, d)], d)

    # Deciding

    def put(self, g, d):
        self.put_alone(g, d)
        if any(g in one for one, _ in self.apart):
            self.put_forced()

    def put_forced(self):
        """Those of a separation that "one device is left for", in order, until there are none."""
        changed = True
        while changed:
            changed = False
            for g, decided in enumerate(self.decided):
                if decided is None and any(g in one for one, _ in self.apart):
                    left = [d for d in self.devices if self.may(g, d)]
                    if not left:
                        raise StuckError(g)
                    if len(left) == 1:
                        self.put_alone(g, left[0])
                        changed = True

    def put_alone(self, g, d):
        p = self.machine.pool_of[d]
        self.decided[g] = d
        self.used_persistent[p] += self.persistent[g][p]
        self.used_full[p] += self.full[g][p]
        self.used_besides[p] = max(self.used_besides[p], self.besides[g][p])

    def decide(self, i, d):
        if self.decided[self.unit[i]] is None:
            self.put(self.unit[i], d)
        for edge in self.into[i]:
            g = self.unit[edge.maker]
            if self.decided[g] is None:
                homes = [h for h in self.devices if self.may(g, h)]
                if not homes:
                    raise StuckError(g)
                self.put(g, min(homes, key=lambda h: (self.tier_of([g], h), self.transfer(edge, h, d), h != d, h)))

    def decide_rest(self):
        for g, d in enumerate(self.decided):
            if d is None:
                homes = [h for h in self.devices if self.may(g, h)]
                if not homes:
                    raise StuckError(g)
                self.put(g, min(homes, key=lambda h: (self.tier_of([g], h), h)))

    def note(self, i, start, d):
        self.scheduled[i] = True
        self.start[i], self.finish[i] = start, start + self.cost[i][d]

    # HEFT and CPOP

    def slot(self, i, d, ready):
        """The first idle period in which the operation can run to its end."""
        if self.off[i]:
            return ready
        idle = 0.0
        for start, end in self.busy[d]:
            if start > idle and max(idle, ready) + self.cost[i][d] <= start:
                return max(idle, ready)
            idle = end
        return max(idle, ready)

    def place(self, i, d):
        self.decide(i, d)
        start = self.slot(i, d, self.arrival(i, d))
        self.note(i, start, d)
        if not self.off[i] and self.finish[i] > start:
            self.busy[d].append((start, self.finish[i]))
            self.busy[d].sort()

    def place_earliest(self, i):
        options = [d for d in self.devices if self.is_open(i, d)]
        if not options:
            raise StuckError(self.unit[i])
        ends = {d: self.slot(i, d, self.arrival(i, d)) + self.cost[i][d] for d in options}
        self.place(i, min(options, key=lambda d: (self.tier(i, d), ends[d], d)))

    def heft(self):
        self.busy = [[] for _ in self.devices]
        self.put_forced()
        rank = self.upward()
        for i in sorted(range(self.n), key=lambda i: (-rank[i], i)):
            if not self.passive[i]:
                self.place_earliest(i)
        self.decide_rest()
        return rank

    def cpop(self):
        self.busy = [[] for _ in self.devices]
        self.put_forced()
        rank = [a + b for a, b in zip(self.upward(), self.downward(), strict=True)]
        path = []
        following = [i for i in range(self.n) if not self.into[i] or self.passive[i]]
        while following:
            path.append(min(following, key=lambda i: (-rank[i], i)))
            following = [e.reader for e in self.out_of[path[-1]]]

        def worth(d):
            there = [i for i in path if self.choices[self.unit[i]][d]]
            return -len(there), sum(self.cost[i][d] for i in there), d

        device = min(self.devices, key=worth)
        while ready := self.ready():
            i = min(ready, key=lambda i: (-rank[i], i))
            if i in path and self.is_open(i, device) and self.tier(i, device) == 0:
                self.place(i, device)
            else:
                self.place_earliest(i)
        self.decide_rest()
        return rank

    def ready(self):
        """Operations that wait for nothing but what is scheduled or passive."""
        return [
            i
            for i in range(self.n)
            if not self.passive[i]
            and not self.scheduled[i]
            and all(self.passive[e.maker] or self.scheduled[e.maker] for e in self.into[i])
        ]

    # ETF, and SCT with favourites

    def starts(self, i, d):
        """When operation i would start on device d: later than it could where the device is kept free for another."""
        last = self.last[d]
        favourite = -1 if last is None else self.favourite[last]
        awake = favourite >= 0 and not self.scheduled[favourite] and self.is_open(favourite, d)
        at = self.arrival(i, d)
        if awake and i != favourite:
            at = max(self.arrival(i, other) for other in self.devices if self.choices[self.unit[i]][other])
        return max(self.free[d], at)

    def settle_off_queue(self):
        """Those "off the queues ... at once when what they wait for is scheduled"."""
        while True:
            new = [i for i in self.ready() if i not in self.waiting]
            if not new:
                return
            self.waiting += new
            while self.at < len(self.waiting):
                i = self.waiting[self.at]
                self.at += 1
                if self.off[i]:
                    options = [d for d in self.devices if self.is_open(i, d)]
                    if not options:
                        raise StuckError(self.unit[i])
                    d = min(options, key=lambda d: (self.tier(i, d), self.arrival(i, d), d))
                    self.decide(i, d)
                    self.note(i, self.arrival(i, d), d)
                    self.finish[i] = self.start[i]
                    readers = dict.fromkeys(sorted(e.reader for e in self.out_of[i]))
                    now = set(self.ready())
                    self.waiting += [j for j in readers if j in now and j not in self.waiting]

    def etf(self):
        level = self.upward(transfers=False)
        self.free, self.last = [0.0 for _ in self.devices], [None for _ in self.devices]
        self.put_forced()
        self.waiting, self.at = [], 0  # in order of becoming ready, and those looked at
        self.settle_off_queue()
        while ready := self.ready():
            pairs = [
                (self.starts(i, d), -level[i], i, i != self._favourite(d), self.starts(i, d) + self.cost[i][d], d)
                for i in ready
                for d in self.devices
                if self.is_open(i, d)
                and (self.first[self.unit[i]][d] or self.decided[self.unit[i]] == d)
                and self.tier(i, d) == 0
            ]
            if pairs:
                used = dict.fromkeys(pair[-1] for pair in pairs)
                by_device = [min((p for p in pairs if p[-1] == d), key=self._on_one) for d in used]
                best = min(by_device, key=lambda p: (p[0], p[1], p[2], p[4], p[5]))
                i, d = best[2], best[-1]
            else:
                i = min(ready, key=lambda i: (-level[i], i))
                options = [d for d in self.devices if self.is_open(i, d)]
                if not options:
                    raise StuckError(self.unit[i])
                begin = {d: max(self.free[d], self.arrival(i, d)) for d in options}
                d = min(options, key=lambda d: (self.tier(i, d), begin[d], begin[d] + self.cost[i][d], d))
            self.decide(i, d)
            self.note(i, max(self.free[d], self.arrival(i, d)), d)
            if self.cost[i][d] > 0:
                self.free[d] = self.finish[i]
            if self.cost[i][d] > 0 or (self.last[d] is not None and self.favourite[self.last[d]] == i):
                self.last[d] = i
            self.settle_off_queue()
        self.decide_rest()
        return level

    def _favourite(self, d):
        """What device d is kept free for, or -1."""
        return -1 if self.last[d] is None else self.favourite[self.last[d]]

    @staticmethod
    def _on_one(pair):
        """On one device: the earliest start, then the favourite, then the larger level, then the lower index."""
        start, minus_level, i, is_other, _, _ = pair
        return start, is_other, minus_level, i


def run(problem: Problem, method: str, **units) -> tuple[Twin, list[float], int]:
    """The schedule, the rank of every operation, and the unit that no device is left for, or -1."""
    twin = Twin(problem, **units)
    try:
        return twin, getattr(twin, method)(), -1
    except StuckError as error:
        return twin, [], error.unit


# Plain tables, as in the textbooks ----------------------------------------------------------------------------------


def heft_of_tables(costs, edges, moves):
    """(device, start, end) of every task, and nothing but the paper's words: no groups, no memory."""
    n, processors = len(costs), range(len(costs[0]))
    move = dict(zip(edges, moves, strict=True))
    after = {i: [b for a, b in edges if a == i] for i in range(n)}
    before = {i: [a for a, b in edges if b == i] for i in range(n)}
    rank = {}
    for i in reversed(range(n)):
        rank[i] = sum(costs[i]) / len(costs[i]) + max((move[i, j] + rank[j] for j in after[i]), default=0.0)
    line = {p: [] for p in processors}
    where, end = {}, {}
    rows = [None] * n
    for i in sorted(range(n), key=lambda i: (-rank[i], i)):
        best = None
        for p in processors:
            ready = max((end[j] + (0 if where[j] == p else move[j, i]) for j in before[i]), default=0.0)
            edges_of_gaps = [0.0, *(e for _, e in line[p])], [*(s for s, _ in line[p]), float("inf")]
            start = next(max(a, ready) for a, b in zip(*edges_of_gaps, strict=True) if max(a, ready) + costs[i][p] <= b)
            if best is None or start + costs[i][p] < best[0]:
                best = start + costs[i][p], p, start
        end[i], where[i], start = best
        line[where[i]] = sorted([*line[where[i]], (start, end[i])])
        rows[i] = (where[i], start, end[i])
    return rows
