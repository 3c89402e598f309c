"""Brings replica sets within bounds with the fewest changes: a minimum-cost flow by successive shortest paths.

`plan` uses it for replicas, and then for preferred leaders (which are sets of one broker per partition).

A partition holds a set of brokers; `allowed` defines the possible sets. Each broker has bounds for what it holds of a
row of partitions (a topic) and in total. In the network, a partition feeds (row, broker), which feeds the broker, which
feeds the sum. Holding a broker that was not held before costs 1. Flow outside the bounds of a node is its excess (or,
if negative, its lack) and is pushed from excess to lack along paths of least cost: a partition gains a broker or
exchanges one for another, or the slack between bounds shifts. This is the method of successive shortest paths [Ahuja,
Magnanti, Orlin, "Network Flows", 1993, chapter 9], several paths at a time; exchanging brokers inside a partition is
matroid intersection, since the legal sets of a partition are the bases of a matroid.

Optimality: initially, all held brokers were held before, so no cost can be saved without leaving excess; pushing along
shortest paths preserves this. The work grows with the excess, plus one scan of the rest per path length; if everything
is within bounds, one pass shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.placement.domains import bits

Allowed = Callable[[int, int], int]
"""(partition, brokers it holds) -> the brokers that it may hold in addition."""

GAIN = -1
"""Used for the broker given up: the partition gains a broker."""
SLACK = -1
"""Used for the partition: the arc is a slack between bounds."""
Arc = tuple[int, int, int]
"""(from, to, the partition that changes, or SLACK)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The minimum and the maximum that each broker holds, by bit."""

    least: list[int]
    most: list[int]


@dataclass(slots=True)
class FlowTask:
    """The sets to bring within bounds. Lists are indexed by partition unless stated otherwise."""

    brokers: int
    row_of: list[int]
    required: list[int]
    """Number of brokers that each partition must hold."""
    held: list[int]
    """Brokers that each partition holds: initially a subset of `before` that `allowed` can extend to the required
    number."""
    before: list[int]
    """Brokers that cost nothing to hold."""
    allowed: Allowed
    row_bounds: Sequence[Bounds]
    """Indexed by row."""
    bounds: Bounds


def solve(task: FlowTask) -> bool:
    """Change `task.held` until everything is within bounds, at least cost. Return False if that is impossible."""
    return _FlowNetwork(task).run()


class _FlowNetwork:
    """The network. Nodes: row * brokers + bit; then one for each broker; then the sum; then the partitions."""

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
            lack = task.required[partition] - held.bit_count()
            assert lack >= 0, "a partition starts with at most the required number of brokers"
            if lack:
                self.excess[self.first_partition + partition] = lack
        inflow = [0] * width
        # The flow of (row, broker) to its broker, and of the broker to the sum: the held number, clamped to the bounds.
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
        over = sum(self.total) - sum(task.required)
        if over:
            self.excess[self.sum_node] = over
        assert sum(self.excess.values()) == 0, "excess and lack are equal"

    def run(self) -> bool:
        """Push excess until none is left; return False if some cannot be pushed."""
        while self.excess:
            if not self._distances() or not self._push():
                return False
        return True

    # --- arcs

    def _slack(self, node: int) -> Sequence[int]:
        """Return the nodes to which slack between bounds leads from `node`."""
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
        """Return the minimum of a broker for each row."""
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

    def _replacements(self, partition: int, replaced: int) -> tuple[int, int, int]:
        """Return (cost with a broker held before, such brokers, others) that can replace `replaced` or GAIN."""
        task = self.task
        held, before = task.held[partition], task.before[partition]
        cost = 0
        if replaced != GAIN:
            bit = 1 << replaced
            if not held & bit:
                return 0, 0, 0
            held ^= bit
            cost = -1 if not before & bit else 0
            allowed = task.allowed(partition, held) & ~bit
        else:
            allowed = task.allowed(partition, held)
        return cost, allowed & before, allowed & ~before

    def _partitions_at(self, node: int) -> tuple[Sequence[int], int, int]:
        """Return (partitions that can change at `node`, the broker they give up or GAIN, first node of the row)."""
        if node < self.first_broker:
            bit = node % self.width
            return list(self.holders.get(node, ())), bit, node - bit
        if node < self.first_partition:
            return (), GAIN, 0
        partition = node - self.first_partition
        return (partition,), GAIN, self.task.row_of[partition] * self.width

    # --- a phase: distances from the excess, then all shortest paths

    def _distances(self) -> bool:
        """Compute `reached`: the distance of each node up to the nearest lack. Return False if no lack can be reached.

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
                    distance = (cost, arcs + 1) if step == 0 else (cost + step, 0)
                    known = self.reached.get(target)
                    if known is None or (known > distance and known[0] > cost):
                        self.reached[target] = distance
                        if not step and target < self.first_broker:
                            bit = target % self.width
                            self.closed[target - bit] = self.closed.get(target - bit, 0) | 1 << bit
                        queues.setdefault(distance[0], []).append(target) if step else queue.append(target)
                if self.excess.get(node, 0) < 0 and nearest is None:
                    nearest = arcs
            if nearest is not None:
                self._raise_potentials()
                return True
        return False

    def _steps(self, node: int) -> Iterator[tuple[int, int]]:
        """Yield (target, cost less potentials) for each arc that leaves `node`."""
        potential = self.potential.get(node, 0)
        for target in self._slack(node):
            yield target, max(0, potential - self.potential.get(target, 0))
        partitions, replaced, base = self._partitions_at(node)
        by_cost = {-1: 0, 0: 0, 1: 0}
        for partition in partitions:
            cost, cheap, expensive = self._replacements(partition, replaced)
            by_cost[cost] |= cheap
            by_cost[cost + 1] |= expensive
        covered = self.closed.get(base, 0)
        for cost, targets in by_cost.items():
            for bit in bits(targets & ~covered):
                yield base + bit, max(0, cost + potential - self.potential.get(base + bit, 0))
            covered |= targets

    def _raise_potentials(self) -> None:
        for node, (cost, _) in self.reached.items():
            if cost < self.cost:
                self.potential[node] = self.potential.get(node, 0) + cost - self.cost

    def _push(self) -> bool:
        """Push excess along shortest paths until no path of this length is left. Return False if none could be used."""
        self.exhausted: set[int] = set()
        self.arcs_from: dict[int, Iterator[Arc]] = {}
        self.open: dict[int, int] = {}
        for node, distance in self.reached.items():
            if node < self.first_broker and distance[0] <= self.cost:
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
            arcs = self.arcs_from.get(node)
            if arcs is None:
                arcs = self.arcs_from[node] = self._onward(node)
            arc = next(arcs, None)
            if arc is not None:
                nodes.append(arc[1])
                path.append(arc)
                continue
            self.exhausted.add(nodes.pop())
            if path:
                path.pop()
        return None

    def _is_shortest(self, node: int, target: int, cost: int) -> bool:
        """Return whether the arc to `target` is part of a shortest path. Such arcs form no cycle."""
        distance = self.reached.get(target)
        if distance is None or distance[0] > self.cost or distance <= self.reached[node] or target in self.exhausted:
            return False
        return cost + self.potential.get(node, 0) - self.potential.get(target, 0) <= 0

    def _shortest_in_row(self, node: int, base: int) -> dict[int, int]:
        """Return, by exchange cost, the brokers of the row that lie on a shortest path."""
        distance, potential = self.reached[node], self.potential.get(node, 0)
        shortest = {-1: 0, 0: 0, 1: 0}
        for bit in bits(self.open.get(base, 0)):
            target = base + bit
            if self.reached[target] <= distance or target in self.exhausted:
                continue
            most = self.potential.get(target, 0) - potential
            for cost in shortest:
                if cost <= most:
                    shortest[cost] |= 1 << bit
        return shortest

    def _onward(self, node: int) -> Iterator[Arc]:
        """Yield the arcs of shortest paths out of `node`; an arc of slack repeats as long as it has any."""
        for target in self._slack(node):
            while self._is_shortest(node, target, 0) and self._has_slack(node, target):
                yield node, target, SLACK
        partitions, replaced, base = self._partitions_at(node)
        if not partitions:
            return
        shortest = self._shortest_in_row(node, base)
        for partition in partitions:
            untried = -1
            while True:
                cost, cheap, expensive = self._replacements(partition, replaced)
                targets = ((cheap & shortest[cost]) | (expensive & shortest[cost + 1])) & untried
                if not targets:
                    break
                # Each partition starts at another broker, so that the load of one broker is spread over many.
                rotated = targets >> (partition % self.width) << (partition % self.width)
                bit = (rotated or targets) & -(rotated or targets)
                untried &= ~bit
                target = base + bit.bit_length() - 1
                if target not in self.exhausted:
                    yield node, target, partition

    def _apply(self, path: list[Arc]) -> bool:
        """Push one unit along `path`; return False, without a change, if it changes one partition twice and cannot."""
        changes: list[tuple[int, int]] = []
        for node, target, partition in path:
            if partition == SLACK:
                continue
            replaced = node % self.width if node < self.first_broker else GAIN
            bit = 1 << target % self.width
            _, cheap, expensive = self._replacements(partition, replaced)
            if not (cheap | expensive) & bit:
                for changed, held in reversed(changes):
                    self.task.held[changed] = held
                return False
            held = self.task.held[partition]
            changes.append((partition, held))
            self.task.held[partition] = (held if replaced == GAIN else held ^ (1 << replaced)) | bit
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
