"""The tree of failure domains: legal replica sets of a partition, and each broker's fair share of partitions.

Used by `place` and `plan`. Brokers are bits of an integer here (bit i is the i-th usable broker by id), and a set of
brokers is an integer.

A set of replicas is legal if at each domain, from the top down, the replicas in two sibling domains differ by at most
one, unless the domain with fewer replicas has no more brokers. With q replicas in a domain whose children have c_1,
c_2, ... brokers, this means: there is a level L such that each child holds min(c, L) or min(c, L + 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from penstock.placement.model import PlacementBroker


class Domain:
    """A zone, a node or (without children) a broker. `mask` holds its brokers."""

    __slots__ = ("_allowed", "_extends", "_levels", "capacity", "children", "mask")

    def __init__(self, children: list[Domain], mask: int) -> None:
        self.children = children
        self.mask = mask
        self.capacity = mask.bit_count()
        self._levels: dict[int, tuple[list[int], int, int]] = {}
        self._extends: dict[tuple[int, int], bool] = {}
        self._allowed: dict[tuple[int, int], int] = {}

    def levels(self, quota: int) -> tuple[list[int], int, int]:
        """Return (minimum replicas of each child, L + 1, number of children that hold one more), for `quota` replicas
        here."""
        found = self._levels.get(quota)
        if found is None:
            level = 0
            while level < quota and sum(min(child.capacity, level + 1) for child in self.children) <= quota:
                level += 1
            least = [min(child.capacity, level) for child in self.children]
            found = self._levels[quota] = (least, level + 1, quota - sum(least))
        return found

    def limits(self, quota: int) -> tuple[list[int], list[int]]:
        """Return (minimum, maximum) replicas of each child if this domain holds `quota`."""
        least, level, extra = self.levels(quota)
        if not extra:
            return least, least
        return least, [min(child.capacity, level) for child in self.children]

    def extends(self, held: int, quota: int) -> bool:
        """Return whether replicas on `held` (all in this domain) can be completed to a legal `quota`."""
        if not self.children or not held:
            return held.bit_count() <= quota
        if held.bit_count() > quota:
            return False
        found = self._extends.get((held, quota))
        if found is None:
            found = self._extends[(held, quota)] = self._full(held, quota) is not None
        return found

    def allowed(self, held: int, quota: int) -> int:
        """Return the brokers of this domain that can join `held` towards a legal `quota`."""
        if held.bit_count() >= quota:
            return 0
        if not self.children:
            return self.mask
        found = self._allowed.get((held, quota))
        if found is None:
            found = self._allowed[(held, quota)] = self._find_allowed(held, quota)
        return found

    def _full(self, held: int, quota: int) -> list[bool] | None:
        """Return for each child whether it must hold the maximum; None if `held` cannot be completed."""
        least, _, extra = self.levels(quota)
        full = []
        for child, low in zip(self.children, least, strict=True):
            inside = held & child.mask
            needs_more = not child.extends(inside, low)
            if needs_more and (child.capacity <= low or not child.extends(inside, low + 1)):
                return None
            full.append(needs_more)
        return full if sum(full) <= extra else None

    def _find_allowed(self, held: int, quota: int) -> int:
        full = self._full(held, quota)
        if full is None:
            return 0
        least, _, extra = self.levels(quota)
        spare = sum(full) < extra
        result = 0
        for child, low, is_full in zip(self.children, least, full, strict=True):
            inside = held & child.mask
            result |= child.allowed(inside, low)
            if is_full or (spare and child.capacity > low):
                result |= child.allowed(inside, low + 1)
        return result


class Domains:
    """The tree of usable brokers, with legal sets and fair shares for each replication factor."""

    def __init__(self, usable: Sequence[PlacementBroker]) -> None:
        assert usable, "a tree of domains has a broker"
        self.ids = [broker.broker_id for broker in usable]
        self.bit_of = {broker_id: bit for bit, broker_id in enumerate(self.ids)}
        self.root = _tree([(broker.failure_domain, bit) for bit, broker in enumerate(usable)])
        self._shares: dict[int, list[Fraction]] = {}

    def allowed(self, held: int, factor: int) -> int:
        """Return the brokers that can join `held` towards a legal set of `factor` replicas."""
        return self.root.allowed(held, factor)

    def legal(self, held: int, factor: int) -> bool:
        """Return whether `held` is a legal set of exactly `factor` replicas."""
        return held.bit_count() == factor and self.root.extends(held, factor)

    def mask_of(self, replicas: Sequence[int]) -> int:
        """Return the bits of the `replicas` that are on usable brokers."""
        mask = 0
        for broker_id in replicas:
            bit = self.bit_of.get(broker_id)
            if bit is not None:
                mask |= 1 << bit
        return mask

    def shares(self, factor: int) -> list[Fraction]:
        """Return each broker's fair share of one partition with `factor` replicas; the sum is `factor`.

        Siblings divide their parent's share in proportion to their number of brokers, as far as the spread permits:
        with domains of equal shape, each broker gets factor / brokers.
        """
        found = self._shares.get(factor)
        if found is None:
            found = self._shares[factor] = [Fraction(0)] * len(self.ids)
            _share_out(self.root, Fraction(factor), found)
            assert sum(found) == factor, "shares must add up to the replication factor"
        return found


def bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _tree(members: list[tuple[tuple[str, ...], int]]) -> Domain:
    """Return a domain of brokers given as (rest of the path, bit). Chains of single children are kept, at no cost."""
    inner: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    children = []
    for path, bit in members:
        if path:
            inner.setdefault(path[0], []).append((path[1:], bit))
        else:
            children.append(Domain([], 1 << bit))
    children.extend(_tree(inside) for _, inside in sorted(inner.items()))
    mask = 0
    for child in children:
        mask |= child.mask
    return Domain(children, mask)


def _share_out(domain: Domain, quota: Fraction, shares: list[Fraction]) -> None:
    if not domain.children:
        shares[domain.mask.bit_length() - 1] = quota
        return
    whole = quota.numerator // quota.denominator
    part = quota - whole
    low, high = domain.limits(whole)
    least, most = [Fraction(low_i) for low_i in low], [Fraction(high_i) for high_i in high]
    if part:
        # Some partitions have one more replica here than others: interpolate between the limits of both.
        low, high = domain.limits(whole + 1)
        least = [(1 - part) * a + part * b for a, b in zip(least, low, strict=True)]
        most = [(1 - part) * a + part * b for a, b in zip(most, high, strict=True)]
    capacities = [child.capacity for child in domain.children]
    for child, due in zip(domain.children, _proportional(quota, capacities, least, most), strict=True):
        _share_out(child, due, shares)


def _proportional(
    total: Fraction, weights: Sequence[int], least: Sequence[Fraction], most: Sequence[Fraction]
) -> list[Fraction]:
    """Divide `total` in proportion to `weights`, each part within its limits."""
    parts: list[Fraction] = [Fraction(0)] * len(weights)
    free = set(range(len(weights)))
    rest = total
    while free:
        rate = rest / sum(weights[i] for i in free)
        below = [i for i in free if rate * weights[i] < least[i]]
        above = [i for i in free if rate * weights[i] > most[i]]
        short = sum((least[i] - rate * weights[i] for i in below), Fraction(0))
        over = sum((rate * weights[i] - most[i] for i in above), Fraction(0))
        if not below and not above:
            for i in free:
                parts[i] = rate * weights[i]
            break
        # If the shortfall exceeds the surplus, the parts below their minimum are final, else those above the maximum.
        final, limit = (below, least) if short >= over else (above, most)
        for i in final:
            parts[i] = limit[i]
            rest -= limit[i]
            free.discard(i)
        if short == over:
            for i in above:
                parts[i] = most[i]
                rest -= most[i]
                free.discard(i)
    return parts
