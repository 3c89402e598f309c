"""Finds in a history what a broker must never do. Pure: it knows histories and nothing of the simulation.

Each finding is a `Finding` of one kind. What a writer or member was not told for certain may have happened or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock_simulation.history import Commit, CommittedRead, Content, History, Outcome, Partition, Seen, Write


class Finding(NamedTuple):
    """`kind` names the promise that was broken."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def check(history: History) -> list[Finding]:
    """All findings, the gravest kinds first."""
    return [finding for find in CHECKS for finding in find(history)]


def place(partition: Partition, offset: int | None = None) -> str:
    name = f"{partition[0]}-{partition[1]}"
    return name if offset is None else f"{name} offset {offset}"


# What the log holds


def lost(history: History) -> Iterator[Finding]:
    """An acknowledged record is there at the end, unless the log begins behind it."""
    contents = {content.partition: content for content in history.contents}
    values = {c.partition: {value for _, value in c.records} for c in history.contents}
    for write in history.writes:
        content = contents.get(write.partition)
        if write.outcome is not Outcome.OK or content is None or 0 <= write.offset < content.start:
            continue
        if write.transaction in history.aborted:
            continue
        if write.value not in values[write.partition] and (write.offset >= 0 or content.start == 0):
            yield Finding(
                "lost",
                f"{write.value!r} was acknowledged at {place(write.partition, write.offset)}"
                f" ({write.completed_s:.3f} s); the log holds {content.start} to {content.end} and not that",
            )


def gaps(history: History) -> Iterator[Finding]:
    """Without compaction and transactions, a log holds a record at each offset between its ends, and behind."""
    for content in history.contents:
        if content.read_committed:
            continue
        expected = content.start
        for offset, _ in content.records:
            if offset != expected:
                yield Finding("gap", f"{place(content.partition)} holds {offset} where {expected} is next")
            expected = offset + 1
        if content.records and expected < content.end:  # what a writer left under way may come after the end was asked
            yield Finding("gap", f"{place(content.partition)} ends at {content.end}, its last record is {expected - 1}")


def invented(history: History) -> Iterator[Finding]:
    """Every record read was sent to that partition, and is not known to have been rejected."""
    sent = {write.value: write for write in history.writes}
    for partition, offset, value, where in observed(history):
        write = sent.get(value)
        if write is None or write.partition != partition:
            yield Finding("invented", f"{where} has {value!r} at {place(partition, offset)}, which none sent there")
        elif write.outcome is Outcome.FAILED:
            yield Finding("invented", f"{where} has {value!r} at {place(partition, offset)}, which was refused")


def duplicated(history: History) -> Iterator[Finding]:
    """A record of an idempotent writer is in its log once."""
    idempotent = {write.value for write in history.writes if write.idempotent}
    for content in history.contents:
        first: dict[bytes, int] = {}
        for offset, value in content.records:
            if value in first and value in idempotent:
                yield Finding("duplicated", f"{value!r} is at {place(content.partition, first[value])} and {offset}")
            first.setdefault(value, offset)


def reordered(history: History) -> Iterator[Finding]:
    """The records of an idempotent writer are in a partition in the order of sending."""
    sent = {write.value: write for write in history.writes if write.idempotent}
    for content in history.contents:
        latest: dict[str, Write] = {}
        for offset, value in content.records:
            write = sent.get(value)
            if write is None:
                continue
            before = latest.get(write.writer)
            if before is not None and before.number > write.number:
                yield Finding(
                    "reordered", f"{value!r} at {place(content.partition, offset)} comes after {before.value!r}"
                )
            else:
                latest[write.writer] = write


def inconsistent(history: History) -> Iterator[Finding]:
    """An offset has one value, for writers, readers and the final reader."""
    found: dict[tuple[Partition, int], tuple[bytes, str]] = {}
    for partition, offset, value, where in [*acknowledged_places(history), *observed(history)]:
        before = found.setdefault((partition, offset), (value, where))
        if before[0] != value:
            yield Finding(
                "inconsistent", f"{place(partition, offset)} is {before[0]!r} for {before[1]}, {value!r} for {where}"
            )


def acknowledged_places(history: History) -> Iterator[tuple[Partition, int, bytes, str]]:
    for write in history.writes:
        if write.outcome is Outcome.OK and write.offset >= 0:
            yield write.partition, write.offset, write.value, f"its writer {write.writer}"


def observed(history: History) -> Iterator[tuple[Partition, int, bytes, str]]:
    """(partition, offset, value, who) of all that was read."""
    for seen in history.seen:
        yield seen.partition, seen.offset, seen.value, f"the reader {seen.reader}"
    for content in history.contents:
        for offset, value in content.records:
            yield content.partition, offset, value, "the final read"


def vanished(history: History) -> Iterator[Finding]:
    """What a reader was given is still there at the end: readers see nothing that may be lost."""
    contents = {content.partition: content for content in history.contents}
    values = {c.partition: {value for _, value in c.records} for c in history.contents}
    told: set[tuple[Partition, int]] = set()
    for seen in history.seen:
        content = contents.get(seen.partition)
        key = seen.partition, seen.offset
        if content is None or seen.offset < content.start or key in told:
            continue
        if seen.value not in values[seen.partition]:
            told.add(key)
            yield Finding(
                "lost", f"{seen.value!r} was read by {seen.reader} at {place(*key)} ({seen.at_s:.3f} s) and is gone"
            )


# What readers see


def sessions(history: History) -> dict[tuple[str, int, Partition], list[Seen]]:
    found: dict[tuple[str, int, Partition], list[Seen]] = defaultdict(list)
    for seen in history.seen:
        found[seen.reader, seen.session, seen.partition].append(seen)
    return found


def non_monotonic(history: History) -> Iterator[Finding]:
    """Within a session, offsets rise."""
    for seen in sessions(history).values():
        for a, b in pairwise(seen):
            if b.offset <= a.offset:
                yield Finding("non-monotonic", f"{b.reader} got {place(b.partition, b.offset)} after {a.offset}")


def unseen(history: History) -> Iterator[Finding]:
    """A reader leaves out nothing; a group does not commit past what none of its members was given."""
    contents = {content.partition: content for content in history.contents}
    for seen in sessions(history).values():
        content = contents.get(seen[0].partition)
        if content is None:
            continue
        given = {s.offset for s in seen}
        first, last = min(given), max(given)
        for offset, value in content.records:
            if first <= offset <= last and offset not in given:
                yield Finding("unseen", f"{seen[0].reader} passed over {value!r} at {place(content.partition, offset)}")
    yield from unseen_by_groups(history, contents)


def unseen_by_groups(history: History, contents: dict[Partition, Content]) -> Iterator[Finding]:
    given: dict[tuple[str, Partition], set[int]] = defaultdict(set)
    for seen in history.seen:
        if seen.group:
            given[seen.group, seen.partition].add(seen.offset)
    reached: dict[tuple[str, Partition], int] = {}
    for read in history.committed_reads:
        key = read.group, read.partition
        reached[key] = max(reached.get(key, -1), read.offset)
    for (group, partition), committed in reached.items():
        content = contents.get(partition) if (group, partition) in given else None
        for offset, value in content.records if content is not None else ():
            if offset < committed and offset not in given[group, partition]:
                yield Finding(
                    "unseen",
                    f"group {group} committed {committed}, no member got {value!r} at {place(partition, offset)}",
                )


# Transactions


def aborted_read(history: History) -> Iterator[Finding]:
    """Who reads committed records only gets none of an aborted transaction."""
    writes = {write.value: write for write in history.writes if write.transaction in history.aborted}
    told = [(seen.value, f"the reader {seen.reader}") for seen in history.seen if seen.read_committed]
    for content in history.contents:
        if content.read_committed:
            told += [(value, "the final read") for _, value in content.records]
    for value, who in told:
        if value in writes:
            yield Finding("aborted read", f"{who} got {value!r} of the aborted {writes[value].transaction}")


def torn(history: History) -> Iterator[Finding]:
    """Of a transaction with an attempted commit, all records are there at the end or none."""
    there = {value for content in history.contents if content.read_committed for _, value in content.records}
    read = {content.partition for content in history.contents if content.read_committed}
    parts: dict[str, list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.transaction in history.undecided and write.partition in read:
            parts[write.transaction].append(write)
    for transaction, writes in parts.items():
        missing = [write for write in writes if write.value not in there]
        if missing and len(missing) < len(writes):
            yield Finding("torn", f"{transaction} is there without {missing[0].value!r}, and {len(missing)} in all")


# What groups commit


def committed_back(history: History) -> Iterator[Finding]:
    """A committed offset that was acknowledged is what is read, or a later one, or one that was still under way."""
    commits: dict[tuple[str, Partition], list[Commit]] = defaultdict(list)
    reads: dict[tuple[str, Partition], list[CommittedRead]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    for read in history.committed_reads:
        reads[read.group, read.partition].append(read)
    for key, its_reads in reads.items():
        for read in its_reads:
            done = [c for c in commits[key] if c.outcome is Outcome.OK and c.completed_s <= read.invoked_s]
            newest = max(done, key=lambda c: c.offset, default=None)
            if newest is None or read.offset >= newest.offset:
                continue
            if not any(may_be_later(c, newest, read) for c in commits[key]):
                yield Finding(
                    "committed back",
                    f"group {key[0]} {place(key[1])}: {newest.offset} was acknowledged at {newest.completed_s:.3f} s,"
                    f" {read.offset} is read at {read.completed_s:.3f} s",
                )
        yield from read_back(its_reads, commits[key])


def may_be_later(commit: Commit, newest: Commit, read: CommittedRead) -> bool:
    """Whether a commit explains a read that is below the newest one acknowledged: it may have come after that."""
    return (
        commit.offset == read.offset
        and commit.outcome is not Outcome.FAILED
        and commit.invoked_s <= read.completed_s
        and commit.completed_s >= newest.invoked_s
    )


def read_back(reads: list[CommittedRead], commits: list[Commit]) -> Iterator[Finding]:
    """Of two reads one after the other the second does not see less."""
    for a, b in pairwise(sorted(reads, key=lambda r: r.completed_s)):
        if b.invoked_s < a.completed_s or b.offset >= a.offset:
            continue
        explained = any(
            c.offset == b.offset and c.outcome is not Outcome.FAILED and c.completed_s >= a.invoked_s for c in commits
        )
        if not explained:
            yield Finding(
                "committed back", f"group {b.group} {place(b.partition)}: {a.offset} was read, later {b.offset}"
            )


def aborted_commit(history: History) -> Iterator[Finding]:
    """An offset that was committed in a transaction which was aborted is not what a group has committed."""
    ways: dict[tuple[str, Partition, int], list[Commit]] = defaultdict(list)
    for commit in history.commits:
        ways[commit.group, commit.partition, commit.offset].append(commit)
    for read in history.committed_reads:
        commits = ways.get((read.group, read.partition, read.offset))
        if commits and all(commit.transaction in history.aborted for commit in commits):
            yield Finding(
                "aborted read",
                f"group {read.group} has reportedly committed {read.offset} of {place(read.partition)}, which was part"
                f" of the aborted {commits[0].transaction}",
            )


# What a cluster's brokers do


def two_leaders(history: History) -> Iterator[Finding]:
    """In one leader epoch one broker acknowledges."""
    leaders: dict[tuple[Partition, int], str] = {}
    for told in history.acknowledgements:
        leader = leaders.setdefault((told.partition, told.epoch), told.broker)
        if leader != told.broker:
            yield Finding(
                "two leaders",
                f"{leader} and {told.broker} acknowledged in epoch {told.epoch} of {place(told.partition)}",
            )


def high_watermark_back(history: History) -> Iterator[Finding]:
    """A replica's high watermark does not fall."""
    highest: dict[tuple[Partition, str], int] = {}
    for mark in history.high_watermarks:
        key = mark.partition, mark.replica
        if mark.offset < highest.get(key, 0):
            yield Finding(
                "high watermark back", f"{mark.replica} {place(mark.partition)}: {mark.offset} after {highest[key]}"
            )
        highest[key] = max(mark.offset, highest.get(key, 0))


def replicas_differ(history: History) -> Iterator[Finding]:
    """Below the lower of their high watermarks, any two replicas of a partition hold the same."""
    by_partition: dict[Partition, list[tuple[str, int, dict[int, bytes]]]] = defaultdict(list)
    for replica in history.replicas:
        by_partition[replica.partition].append((replica.replica, replica.high_watermark, dict(replica.records)))
    for partition, replicas in by_partition.items():
        for number, (a, a_mark, a_records) in enumerate(replicas):
            for b, b_mark, b_records in replicas[number + 1 :]:
                limit = min(a_mark, b_mark)
                start = max(min(a_records, default=limit), min(b_records, default=limit))
                for offset in range(start, limit):
                    if a_records.get(offset) != b_records.get(offset):
                        yield Finding("replicas differ", f"{a} and {b} hold not the same at {place(partition, offset)}")
                        break


CHECKS: Iterable[Callable[[History], Iterator[Finding]]] = (
    lost,
    vanished,
    inconsistent,
    duplicated,
    reordered,
    invented,
    gaps,
    unseen,
    aborted_read,
    torn,
    aborted_commit,
    non_monotonic,
    committed_back,
    two_leaders,
    high_watermark_back,
    replicas_differ,
)
