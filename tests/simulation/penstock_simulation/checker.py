"""Checks a history against the guarantees of a broker. Pure functions that depend only on `history`.
`share_checks` has those of share groups, `schedule_checks` those of scheduled records, `resize_checks`
those of topics whose number of partitions changes.

Each finding is a `Finding` of one kind. An operation whose outcome the client does not know may have been executed or
not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import inf

from penstock_simulation import filter_checks, resize_checks, schedule_checks, share_checks
from penstock_simulation.findings import Finding, place
from penstock_simulation.history import Commit, CommittedRead, Content, History, Outcome, Partition, Seen, Write


def check(history: History) -> list[Finding]:
    """Return all findings, the most severe kinds first."""
    return [finding for find in CHECKS for finding in find(history)]


# Log contents


def lost(history: History) -> Iterator[Finding]:
    """An acknowledged record is in the final contents, unless the log start offset is above it."""
    contents = {content.partition: content for content in history.contents}
    values = {c.partition: {value for _, value in c.records} for c in history.contents}
    for write in history.writes:
        content = contents.get(write.partition)
        if write.outcome is not Outcome.OK or content is None or 0 <= write.offset < content.start:
            continue
        if write.transaction in history.aborted or write.partition[0] in history.resized:
            continue
        if write.value not in values[write.partition] and (write.offset >= 0 or content.start == 0):
            yield Finding(
                "lost",
                f"{write.value!r} was acknowledged at {place(write.partition, write.offset)}"
                f" ({write.completed_s:.3f} s); the log holds {content.start} to {content.end} and not that",
            )


def gaps(history: History) -> Iterator[Finding]:
    """Without compaction, transactions and relays, a log has a record at each offset from start to end."""
    for content in history.contents:
        if content.read_committed or content.partition[0] in history.resized:
            continue
        expected = content.start
        for offset, _ in content.records:
            if offset != expected:
                yield Finding("gap", f"{place(content.partition)} holds {offset} where {expected} is next")
            expected = offset + 1
        if content.records and expected < content.end:  # a pending record may arrive after the end was read
            yield Finding("gap", f"{place(content.partition)} ends at {content.end}, its last record is {expected - 1}")


def invented(history: History) -> Iterator[Finding]:
    """Every record read was sent to that partition, and is not known to have been rejected."""
    sent = {write.value: write for write in history.writes}
    for partition, offset, value, where in observed(history):
        write = sent.get(value)
        if write is None or not may_be_in(partition, write, history):
            yield Finding("invented", f"{where} has {value!r} at {place(partition, offset)}, which none sent there")
        elif write.outcome is Outcome.FAILED:
            yield Finding("invented", f"{where} has {value!r} at {place(partition, offset)}, which was refused")


def may_be_in(partition: Partition, write: Write, history: History) -> bool:
    """Whether a record may be read in a partition."""
    return write.partition == partition or write.partition[0] == partition[0] in history.resized


def duplicated(history: History) -> Iterator[Finding]:
    """A record of an idempotent writer occurs once in its log."""
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
        if content.partition[0] in history.resized:
            continue
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
    """An offset has the same value for writers, readers and the final reader."""
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
    """Return (partition, offset, value, reader) of each record read."""
    for seen in history.seen:
        yield seen.partition, seen.offset, seen.value, f"the reader {seen.reader}"
    for delivery in history.deliveries:
        yield delivery.partition, delivery.offset, delivery.value, f"the member {delivery.member}"
    for content in history.contents:
        for offset, value in content.records:
            yield content.partition, offset, value, "the final read"


def vanished(history: History) -> Iterator[Finding]:
    """Each record that a reader received is in the final contents: readers receive no record that can be lost."""
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


# Records that readers receive


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
    """A reader skips no record that passes its filter; a group commits no offset beyond a record that its members
    did not receive."""
    contents = {content.partition: content for content in history.contents}
    selects = {text: filter_checks.passes(history, text) for text in {seen.filter for seen in history.seen}}
    for seen in sessions(history).values():
        content, is_selected = contents.get(seen[0].partition), selects[seen[0].filter]
        if content is None:
            continue
        given = {s.offset for s in seen}
        first, last = min(given), max(given)
        for offset, value in content.records:
            if first <= offset <= last and offset not in given and is_selected(value):
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


def early(history: History) -> Iterator[Finding]:
    """No reader receives a record of a delayed topic before its delay has passed."""
    sent = {write.value: write for write in history.writes if write.partition[0] in history.delays_s}
    received = [(seen.value, seen.at_s, seen.reader) for seen in history.seen]
    received += [(delivery.value, delivery.received_s, delivery.member) for delivery in history.deliveries]
    for value, at_s, reader in received:
        write = sent.get(value)
        if write is not None and at_s < write.invoked_s + history.delays_s[write.partition[0]]:
            yield Finding(
                "early",
                f"{reader} got {value!r} of {place(write.partition)} at {at_s:.3f} s;"
                f" it was sent at {write.invoked_s:.3f} s",
            )


# Transactions


def aborted_read(history: History) -> Iterator[Finding]:
    """A `read_committed` reader receives no record of an aborted transaction."""
    writes = {write.value: write for write in history.writes if write.transaction in history.aborted}
    told = [(seen.value, f"the reader {seen.reader}") for seen in history.seen if seen.read_committed]
    for content in history.contents:
        if content.read_committed:
            told += [(value, "the final read") for _, value in content.records]
    for value, who in told:
        if value in writes:
            yield Finding("aborted read", f"{who} got {value!r} of the aborted {writes[value].transaction}")


def torn(history: History) -> Iterator[Finding]:
    """Of a transaction with an attempted commit, either all records or none are in the final contents."""
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


# Committed offsets


def committed_back(history: History) -> Iterator[Finding]:
    """A group's committed offset is the last acknowledged one, a later one, or one whose commit was pending."""
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
    """Whether a commit explains a read that is below the newest acknowledged one: it may have been applied later."""
    return (
        commit.offset == read.offset
        and commit.outcome is not Outcome.FAILED
        and commit.invoked_s <= read.completed_s
        and commit.completed_s >= newest.invoked_s
    )


def read_back(reads: list[CommittedRead], commits: list[Commit]) -> Iterator[Finding]:
    """Of two successive reads, the second does not return a lower offset."""
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
    """A group's committed offset is never one from an aborted transaction."""
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


def two_owners(history: History) -> Iterator[Finding]:
    """Once a member of a group uses a partition, no commit of the member before it that is sent then takes effect."""
    taken_s: dict[int, float] = {}
    last: dict[tuple[str, Partition], int] = {}
    for assigned in history.assignments:
        before = last.get((assigned.group, assigned.partition))
        if before is not None:
            taken_s[before] = assigned.at_s
        last[assigned.group, assigned.partition] = assigned.session
    for commit in history.commits:
        if commit.outcome is Outcome.OK and commit.invoked_s > taken_s.get(commit.session, inf):
            yield Finding(
                "two owners",
                f"a commit of {commit.offset} in {place(commit.partition)} that group {commit.group}'s former member"
                f" sent at {commit.invoked_s:.3f} s took effect; another had the partition since"
                f" {taken_s[commit.session]:.3f} s",
            )


# Brokers of a cluster


def two_leaders(history: History) -> Iterator[Finding]:
    """In one leader epoch, only one broker acknowledges batches."""
    leaders: dict[tuple[Partition, int], str] = {}
    for told in history.acknowledgements:
        leader = leaders.setdefault((told.partition, told.epoch), told.broker)
        if leader != told.broker:
            yield Finding(
                "two leaders",
                f"{leader} and {told.broker} acknowledged in epoch {told.epoch} of {place(told.partition)}",
            )


def high_watermark_back(history: History) -> Iterator[Finding]:
    """A replica's high watermark does not decrease."""
    highest: dict[tuple[Partition, str], int] = {}
    for mark in history.high_watermarks:
        key = mark.partition, mark.replica
        if mark.offset < highest.get(key, 0):
            yield Finding(
                "high watermark back", f"{mark.replica} {place(mark.partition)}: {mark.offset} after {highest[key]}"
            )
        highest[key] = max(mark.offset, highest.get(key, 0))


def replicas_differ(history: History) -> Iterator[Finding]:
    """Below the lower of their high watermarks, any two replicas of a partition are identical."""
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


def allowed_later(history: History) -> Iterator[Finding]:
    """A user may do nothing once all brokers have its revocation, or once a lease has passed since."""
    ended_s = {grant.user: grant.ended_s for grant in history.grants}
    for use in history.uses:
        if use.sent_s > ended_s[use.user]:
            yield Finding(
                "allowed later",
                f"{use.broker} allowed {use.user} to {use.request} at {use.sent_s:.3f} s; the right had ended by"
                f" {ended_s[use.user]:.3f} s",
            )


CHECKS: Iterable[Callable[[History], Iterator[Finding]]] = (
    lost,
    vanished,
    inconsistent,
    duplicated,
    reordered,
    invented,
    gaps,
    unseen,
    early,
    aborted_read,
    torn,
    aborted_commit,
    non_monotonic,
    committed_back,
    two_owners,
    two_leaders,
    high_watermark_back,
    replicas_differ,
    allowed_later,
    *share_checks.CHECKS,
    *schedule_checks.CHECKS,
    *resize_checks.CHECKS,
    *filter_checks.CHECKS,
)
