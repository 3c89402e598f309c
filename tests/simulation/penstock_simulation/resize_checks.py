"""The checks of topics whose number of partitions changes, which `checker` runs. Pure functions of a history.

The checks need the final contents of all partitions. A record is in the partition to which it was sent, or, if that was
sealed, in one of a lower number, to which it was relayed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from penstock_simulation.findings import Finding, place
from penstock_simulation.history import Content, History, Outcome, Partition


def resized_contents(history: History) -> dict[str, list[Content]]:
    """Return the contents of the topics whose number of partitions changes, by topic."""
    found: dict[str, list[Content]] = defaultdict(list)
    for content in history.contents:
        if content.partition[0] in history.resized:
            found[content.partition[0]].append(content)
    return found


def not_relayed(history: History) -> Iterator[Finding]:
    """An acknowledged record is in one of the partitions."""
    contents = resized_contents(history)
    values = {topic: {value for c in found for _, value in c.records} for topic, found in contents.items()}
    for write in history.writes:
        topic = write.partition[0]
        if topic in contents and write.outcome is Outcome.OK and write.value not in values[topic]:
            yield Finding(
                "not relayed",
                f"{write.value!r} was acknowledged at {place(write.partition, write.offset)}"
                f" ({write.completed_s:.3f} s), and no partition has it",
            )


def relayed_twice(history: History) -> Iterator[Finding]:
    """A record is in all partitions together once."""
    for contents in resized_contents(history).values():
        first: dict[bytes, tuple[Partition, int]] = {}
        for content in contents:
            for offset, value in content.records:
                if value in first:
                    where = place(*first[value])
                    yield Finding("relayed twice", f"{value!r} is at {where} and {place(content.partition, offset)}")
                first.setdefault(value, (content.partition, offset))


def relayed_astray(history: History) -> Iterator[Finding]:
    """A record in a partition was sent to it, or to one of a higher number, and is not known to have been rejected."""
    sent = {write.value: write for write in history.writes}
    for contents in resized_contents(history).values():
        for content in contents:
            for offset, value in content.records:
                write = sent.get(value)
                is_possible = write is not None and write.partition >= content.partition
                if write is None or not is_possible or write.outcome is Outcome.FAILED:
                    yield Finding("relayed astray", f"{value!r} is at {place(content.partition, offset)}")


def relayed_out_of_order(history: History) -> Iterator[Finding]:
    """What a writer sent to one partition has its order in each partition, unless there are several ways to it."""
    sent = {write.value: write for write in history.writes}
    for contents in resized_contents(history).values():
        for content in contents if not history.has_relay_chains else ():
            latest: dict[tuple[str, Partition], int] = {}
            for offset, value in content.records:
                write = sent.get(value)
                if write is None:
                    continue
                before = latest.get((write.writer, write.partition), -1)
                if before > write.number:
                    yield Finding(
                        "relayed out of order",
                        f"{value!r} at {place(content.partition, offset)} comes after record {before} of its writer and"
                        f" partition",
                    )
                latest[write.writer, write.partition] = max(before, write.number)


def written_below_seal(history: History) -> Iterator[Finding]:
    """Once a client has seen a seal, no record is written below it."""
    seals = defaultdict(list)
    for seal in history.seals:
        seals[seal.partition].append(seal)
    for write in history.writes:
        for seal in seals.get(write.partition, ()):
            if write.outcome is Outcome.OK and write.invoked_s > seal.at_s and 0 <= write.offset < seal.offset:
                yield Finding(
                    "written below the seal",
                    f"{write.value!r} was sent at {write.invoked_s:.3f} s and written at"
                    f" {place(write.partition, write.offset)}; the seal {seal.offset} was known at {seal.at_s:.3f} s",
                )


def sealed_early(history: History) -> Iterator[Finding]:
    """A seal is stored once all records below it are committed: others may be lost and replaced below the seal."""
    for seal in history.stored_seals:
        if seal.high_watermark < seal.offset:
            yield Finding(
                "sealed early",
                f"{seal.broker} sealed {place(seal.partition, seal.offset)} at high watermark {seal.high_watermark}",
            )


CHECKS: tuple[Callable[[History], Iterator[Finding]], ...] = (
    not_relayed,
    relayed_twice,
    relayed_astray,
    relayed_out_of_order,
    written_below_seal,
    sealed_early,
)
