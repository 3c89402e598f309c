"""The fewest changes that bring holdings within bounds: a flow of least cost, pushed along shortest paths.

`plan` uses it twice: for replicas, and then for preferred leaders (which are holdings of one broker a partition).

A partition holds a set of brokers; what sets are possible is told by `allowed`. Each broker has bounds for what it
holds of a row of partitions (a topic) and of all. The network: a partition feeds (row, broker), which feeds the broker,
which feeds the sum. Holding a broker that was not held before costs 1. What lies outside its bounds is excess (or,
below zero, lack) at its node, and is pushed from excess to lack along paths of least cost: the partition gains a
broker, or changes one for another, or the slack between bounds moves. That is the method of successive shortest paths
[Ahuja, Magnanti, Orlin, "Network Flows", 1993, chapter 9], several paths at a time; the exchange of brokers inside a
partition is that of matroid intersection, since the legal sets of a partition are the bases of a matroid.

Why this is the optimum: what is held at the beginning was all held before, so no cost can be saved without leaving some
excess where it is; and pushing along shortest paths keeps it so. Work goes with what is out of bounds, and one look at
the rest for each length of path; where nothing is out of bounds, one pass says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.placement.domains import bits

Allowed = Callable[[int, int], int]
"""(partition, brokers it holds) -> the brokers that it may hold besides."""

GAIN = -1
"""In place of the broker given up: none, the partition gains one."""
SLACK = -1
"""In place of the partition: the arc is a slack between bounds."""
Arc = tuple[int, int, int]
"""(from, to, the partition that changes or SLACK)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most that each broker holds, by bit."""

    least: list[int]
    most: list[int]


@dataclass(slots=True)
class FlowTask:
    """What is to be brought within bounds. Lists go by partition where nothing else is said."""

    brokers: int
    row_of: list[int]
    wanted: list[int]
    """How many brokers each partition is to hold."""
    held: list[int]
    """What each holds: at the beginning a part of `before` that `allowed` lets grow to what is wanted."""
    before: list[int]
    """What was held and costs nothing to hold."""
    allowed: Allowed
    row_bounds: Sequence[Bounds]
    """By row."""
    bounds: Bounds


def settle(task: FlowTask) -> bool:
    """Changes `task.held` until all is within bounds, at the least cost. False where that cannot be reached."""
    return _Flow(task).run()


class _Flow:
    """Nodes: row * brokers + bit; then one for each broker; then the sum; then the partitions."""

    def __init__(self, task: FlowTask) -> None:
        self.task = task
        self.width = task.brokers
        self.rows = len(task.row_bounds)
        self.first_broker = self.rows * self.width
        self.sum_node = self.first_broker + self.width
        self.first_partition = self.sum_node + 1
        self.holders: dict[int, dict[int, None]] = {}
        self.excess: dict[int, int] = {}
        self.potential: dict[int, int] = {}
        self._fill()

    def _fill(self) -> None:
        task, width = self.task, self.width
        counts = [0] * self.first_broker
        for partition, held in enumerate(task.held):
            base = task.row_of[partition] * width
            for bit in bits(held):
                counts[base + bit] += 1
                self.holders.setdefault(base + bit, {})[partition] = None
            lack = task.wanted[partition] - held.bit_count()
            assert lack >= 0, "a partition starts with no more than it is to hold"
            if lack:
                self.excess[self.first_partition + partition] = lack
        inflow = [0] * width
        # What (row, broker) sends to its broker, and the broker to the sum: as near to what is held as bounds let.
        self.sent = counts
        for row, bounds in enumerate(task.row_bounds):
            base = row * width
            for bit, (least, most) in enumerate(zip(bounds.least, bounds.most, strict=True)):
                count = counts[base + bit]
                if count > most:
                    counts[base + bit], self.excess[base + bit] = most, count - most
                elif count < least:
                    counts[base + bit], self.excess[base + bit] = least, count - least
                inflow[bit] += counts[base + bit]
        self.total = [
            min(max(count, least), most)
            for count, least, most in zip(inflow, task.bounds.least, task.bounds.most, strict=True)
        ]
        for bit, count in enumerate(inflow):
            if count != self.total[bit]:
                self.excess[self.first_broker + bit] = count - self.total[bit]
        over = sum(self.total) - sum(task.wanted)
        if over:
            self.excess[self.sum_node] = over
        assert sum(self.excess.values()) == 0, "what is too much somewhere is missing elsewhere"

    def run(self) -> bool:
        while self.excess:
            if not self._distances() or not self._push():
                return False
        return True

    # --- arcs

    def _slack(self, node: int) -> Sequence[int]:
        """Where the slack between bounds leads from `node`."""
        if node < self.first_broker:
            up = self.first_broker + node % self.width
            return (up,) if self._has_slack(node, up) else ()
        if node < self.sum_node:
            bit = node - self.first_broker
            sent = self.sent[bit : self.first_broker : self.width]
            rows = [bit + row * self.width for row, least in enumerate(self._least(bit)) if sent[row] > least]
            return [self.sum_node, *rows] if self._has_slack(node, self.sum_node) else rows
        if node == self.sum_node:
            return [broker for broker in range(self.first_broker, self.sum_node) if self._has_slack(node, broker)]
        return ()

    def _least(self, bit: int) -> list[int]:
        """The least that a broker holds of each row."""
        return [bounds.least[bit] for bounds in self.task.row_bounds]

    def _has_slack(self, node: int, target: int) -> bool:
        bit = min(node, target) % self.width
        if node < self.first_broker:
            return self.sent[node] < self.task.row_bounds[node // self.width].most[bit]
        if node == self.sum_node:
            return self.total[bit] > self.task.bounds.least[bit]
        if target == self.sum_node:
            return self.total[bit] < self.task.bounds.most[bit]
        return self.sent[target] > self.task.row_bounds[target // self.width].least[bit]

    def _choices(self, partition: int, given_up: int) -> tuple[int, int, int]:
        """(cost of a broker held before, those, the others): what can take the place of `given_up` (or GAIN)."""
        task = self.task
        held, before = task.held[partition], task.before[partition]
        cost = 0
        if given_up != GAIN:
            bit = 1 << given_up
            if not held & bit:
                return 0, 0, 0
            held ^= bit
            cost = -1 if not before & bit else 0
            allowed = task.allowed(partition, held) & ~bit
        else:
            allowed = task.allowed(partition, held)
        return cost, allowed & before, allowed & ~before

    def _partitions_at(self, node: int) -> tuple[Sequence[int], int, int]:
        """(partitions that can change at `node`, the broker that they give up or GAIN, first node of the row)."""
        if node < self.first_broker:
            bit = node % self.width
            return list(self.holders.get(node, ())), bit, node - bit
        if node < self.first_partition:
            return (), GAIN, 0
        partition = node - self.first_partition
        return (partition,), GAIN, self.task.row_of[partition] * self.width

    # --- a phase: how far each node is from the excess, then as many shortest paths as there are

    def _distances(self) -> bool:
        """Finds `reached`: the distance of each node as far as the nearest lack. False where no lack can be reached.

        A distance is (cost less potentials, arcs since the cost last rose).
        """
        self.reached: dict[int, tuple[int, int]] = {}
        self.closed: dict[int, int] = {}
        queues: dict[int, list[int]] = {0: [node for node, excess in self.excess.items() if excess > 0]}
        for node in queues[0]:
            self.reached[node] = (0, 0)
        while queues:
            self.cost = min(queues)
            queue = queues.pop(self.cost)
            nearest = None
            for node in queue:
                cost, arcs = self.reached[node]
                if cost != self.cost:
                    continue
                if nearest is not None and arcs >= nearest:
                    break
                for target, step in self._steps(node):
                    place = (cost, arcs + 1) if step == 0 else (cost + step, 0)
                    known = self.reached.get(target)
                    if known is None or (known > place and known[0] > cost):
                        self.reached[target] = place
                        if not step and target < self.first_broker:
                            bit = target % self.width
                            self.closed[target - bit] = self.closed.get(target - bit, 0) | 1 << bit
                        queues.setdefault(place[0], []).append(target) if step else queue.append(target)
                if self.excess.get(node, 0) < 0 and nearest is None:
                    nearest = arcs
            if nearest is not None:
                self._raise_potentials()
                return True
        return False

    def _steps(self, node: int) -> Iterator[tuple[int, int]]:
        """(to, cost less potentials) for each arc that leaves `node`."""
        here = self.potential.get(node, 0)
        for target in self._slack(node):
            yield target, max(0, here - self.potential.get(target, 0))
        partitions, given_up, base = self._partitions_at(node)
        by_cost = {-1: 0, 0: 0, 1: 0}
        for partition in partitions:
            cost, cheap, dear = self._choices(partition, given_up)
            by_cost[cost] |= cheap
            by_cost[cost + 1] |= dear
        done = self.closed.get(base, 0)
        for cost, targets in by_cost.items():
            for bit in bits(targets & ~done):
                yield base + bit, max(0, cost + here - self.potential.get(base + bit, 0))
            done |= targets

    def _raise_potentials(self) -> None:
        for node, (cost, _) in self.reached.items():
            if cost < self.cost:
                self.potential[node] = self.potential.get(node, 0) + cost - self.cost

    def _push(self) -> bool:
        """Pushes excess along shortest paths until none is left of this length. False where none could be used."""
        self.dead: set[int] = set()
        self.ways: dict[int, Iterator[Arc]] = {}
        self.open: dict[int, int] = {}
        for node, place in self.reached.items():
            if node < self.first_broker and place[0] <= self.cost:
                bit = node % self.width
                self.open[node - bit] = self.open.get(node - bit, 0) | 1 << bit
        pushed = False
        for source in [node for node, excess in self.excess.items() if excess > 0]:
            while self.excess.get(source, 0) > 0:
                path = self._path(source)
                if path is None:
                    break
                pushed = self._apply(path) or pushed
        return pushed

    def _path(self, source: int) -> list[Arc] | None:
        nodes, path = [source], list[Arc]()
        while nodes:
            node = nodes[-1]
            if self.excess.get(node, 0) < 0:
                return path
            way = self.ways.get(node)
            if way is None:
                way = self.ways[node] = self._onward(node)
            arc = next(way, None)
            if arc is not None:
                nodes.append(arc[1])
                path.append(arc)
                continue
            self.dead.add(nodes.pop())
            if path:
                path.pop()
        return None

    def _near(self, node: int, target: int, cost: int) -> bool:
        """True where the arc to `target` is part of a shortest path. Such arcs make no circle."""
        place = self.reached.get(target)
        if place is None or place[0] > self.cost or place <= self.reached[node] or target in self.dead:
            return False
        return cost + self.potential.get(node, 0) - self.potential.get(target, 0) <= 0

    def _near_in_row(self, node: int, base: int) -> dict[int, int]:
        """By the cost of an exchange, the brokers of the row that are `_near` by it."""
        here, potential = self.reached[node], self.potential.get(node, 0)
        near = {-1: 0, 0: 0, 1: 0}
        for bit in bits(self.open.get(base, 0)):
            target = base + bit
            if self.reached[target] <= here or target in self.dead:
                continue
            most = self.potential.get(target, 0) - potential
            for cost in near:
                if cost <= most:
                    near[cost] |= 1 << bit
        return near

    def _onward(self, node: int) -> Iterator[Arc]:
        """The arcs of shortest paths out of `node`; asked again, an arc of slack comes as long as it has any."""
        for target in self._slack(node):
            while self._near(node, target, 0) and self._has_slack(node, target):
                yield node, target, SLACK
        partitions, given_up, base = self._partitions_at(node)
        if not partitions:
            return
        near = self._near_in_row(node, base)
        for partition in partitions:
            untried = -1
            while True:
                cost, cheap, dear = self._choices(partition, given_up)
                targets = ((cheap & near[cost]) | (dear & near[cost + 1])) & untried
                if not targets:
                    break
                # Each partition begins elsewhere, so that what one broker gives up goes to many.
                turned = targets >> (partition % self.width) << (partition % self.width)
                bit = (turned or targets) & -(turned or targets)
                untried &= ~bit
                target = base + bit.bit_length() - 1
                if target not in self.dead:
                    yield node, target, partition

    def _apply(self, path: list[Arc]) -> bool:
        """Pushes one unit along `path`; False, and nothing changed, where it changes one partition twice and cannot."""
        done: list[tuple[int, int]] = []
        for node, target, partition in path:
            if partition == SLACK:
                continue
            given_up = node % self.width if node < self.first_broker else GAIN
            bit = 1 << target % self.width
            _, cheap, dear = self._choices(partition, given_up)
            if not (cheap | dear) & bit:
                for changed, held in reversed(done):
                    self.task.held[changed] = held
                return False
            held = self.task.held[partition]
            done.append((partition, held))
            self.task.held[partition] = (held if given_up == GAIN else held ^ (1 << given_up)) | bit
        for node, target, partition in path:
            if partition != SLACK:
                if node < self.first_broker:
                    self.holders[node].pop(partition, None)
                self.holders.setdefault(target, {})[partition] = None
            elif node < self.first_broker:
                self.sent[node] += 1
            elif node == self.sum_node:
                self.total[target - self.first_broker] -= 1
            elif target == self.sum_node:
                self.total[node - self.first_broker] += 1
            else:
                self.sent[target] -= 1
        self._add(path[0][0], -1)
        self._add(path[-1][1], 1)
        return True

    def _add(self, node: int, amount: int) -> None:
        left = self.excess.get(node, 0) + amount
        if left:
            self.excess[node] = left
        else:
            self.excess.pop(node, None)
