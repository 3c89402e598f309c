"""The checks of a cell: the simulation's, and those of a consume-transform-produce loop.

Pure functions. Each returns findings, one sentence each; no finding means success.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

from penstock_simulation import checker
from penstock_simulation.findings import Finding
from penstock_simulation.history import Content, History, Partition

from penstock_chaos.history import SOURCE, TARGET, Told
from penstock_chaos.renumbered import without


def findings(told: Told, renumbered: Mapping[Partition, Iterable[int]] | None = None) -> list[Finding]:
    """Return all findings, those that clients report first. `told` is settled; `renumbered`: see that module."""
    found = [Finding("broken client", said) for said in told.broken]
    history = told.history
    # Markers have offsets that no consumer reads, so a transactional topic has gaps.
    plain = History(contents=[c for c in history.contents if c.partition[0] != TARGET])
    once = without(history, renumbered or {})
    looked_at = {checker.gaps: plain, checker.duplicated: once, checker.reordered: once}
    for check in checker.CHECKS:
        found += check(looked_at.get(check, history))
    if not any(content.partition[0] == TARGET for content in history.contents):
        return found  # the end could not be read, which is another finding
    for own in (torn, lost_commits, aborted_kept, wrongly_many):
        found += own(told)
    return found


def target_values(told: Told) -> Counter[bytes]:
    """Return how often each value is in the final `read_committed` contents of the target."""
    return Counter(value for c in told.history.contents if c.partition[0] == TARGET for _, value in c.records)


def torn(told: Told) -> Iterator[Finding]:
    """Either all records of a transaction are in the target, or none."""
    there = target_values(told)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for output in told.outputs:
        counts[output.transaction][0] += 1
        counts[output.transaction][1] += output.value in there
    for transaction, (made, found) in counts.items():
        if 0 < found < made:
            yield Finding("torn transaction", f"{transaction} made {made} records; {found} are there")


def lost_commits(told: Told) -> Iterator[Finding]:
    """A transaction whose commit was acknowledged has records in the target."""
    there = target_values(told)
    made = {output.transaction for output in told.outputs}
    kept = {output.transaction for output in told.outputs if output.value in there}
    for transaction in sorted(told.committed & made - kept):
        yield Finding("lost transaction", f"the commit of {transaction} was acknowledged, and nothing of it is there")


def aborted_kept(told: Told) -> Iterator[Finding]:
    """A `read_committed` reader finds no record of an aborted transaction."""
    there = target_values(told)
    for output in told.outputs:
        if output.transaction in told.history.aborted and output.value in there:
            yield Finding("aborted read", f"{output.value!r} of the aborted {output.transaction} is read")


def wrongly_many(told: Told) -> Iterator[Finding]:
    """Each source record below the group's committed offset has exactly one record in the target; others have none."""
    there = target_values(told)
    made: Counter[tuple[int, int]] = Counter()
    for output in told.outputs:
        made[output.source] += there[output.value]
    for content in told.history.contents:
        if content.partition[0] == SOURCE:
            yield from wrongly_many_of(content, made, told.positions.get(content.partition[1], -1))


def wrongly_many_of(content: Content, made: Counter[tuple[int, int]], position: int) -> Iterator[Finding]:
    partition = content.partition[1]
    for offset, value in content.records:
        count, expected = made[partition, offset], 1 if offset < position else 0
        if count != expected:
            yield Finding(
                "not exactly once",
                f"{value!r} at {SOURCE}-{partition} offset {offset} was transformed {count} times, where the group has"
                f" committed {position}",
            )


def longest_pause_s(history: History, topic: str, since_s: float, until_s: float) -> float:
    """Return the longest time between two acknowledged writes of the same partition, over all partitions."""
    acknowledged: dict[int, list[float]] = defaultdict(list)
    for write in history.writes:
        if write.partition[0] == topic and since_s <= write.completed_s <= until_s:
            acknowledged[write.partition[1]].append(write.completed_s)
    longest = 0.0
    for moments in acknowledged.values():
        ordered = [since_s, *sorted(moments), until_s]
        longest = max(longest, *(b - a for a, b in pairwise(ordered)))
    return longest
