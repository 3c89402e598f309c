"""Compares what was read at the end with the loads' journals. Each finding is a sentence; no finding means success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from penstock_crash.journal import Entry, Journal
from penstock_crash.load import body
from penstock_crash.reading import Content

MOST_FINDINGS = 20
Findings = list[str]


def report(findings: Findings, *context: object) -> None:
    """Raise AssertionError with the first findings."""
    shown = "\n".join(findings[:MOST_FINDINGS])
    assert not findings, f"{len(findings)} findings ({', '.join(map(str, context))}):\n{shown}"


def audit_produced(journal: Journal, contents: Mapping[int, Content]) -> Findings:
    """Audit `producers`: no acknowledged record is lost, moved or changed; no gaps; order; no duplicates."""
    findings = []
    sent = {(producer, partition): count for producer, partition, count in journal.of("sent")}
    for partition, content in contents.items():
        findings += audit_offsets(partition, content)
        findings += audit_sequences(partition, content, sent)
    findings += audit_acknowledged(journal, contents)
    findings += audit_seen(journal, contents)
    return findings


def audit_offsets(partition: int, content: Content) -> Findings:
    """Offsets increase by 1 from the log start offset; each value is that of its key."""
    findings = []
    expected = content.start
    for record in content.records:
        if record.offset != expected:
            findings.append(f"partition {partition}: offset {record.offset} where {expected} was expected")
        if record.key is None or record.value != body(record.key):
            findings.append(f"partition {partition}: offset {record.offset} holds a value that no client sent")
        expected = record.offset + 1
    if expected != content.end:
        findings.append(f"partition {partition}: ends at {content.end}, but was read up to {expected}")
    return findings


def audit_sequences(partition: int, content: Content, sent: Mapping[tuple[str, int], int]) -> Findings:
    """Each producer's numbers are in order, from 0 unless the log start was raised. Only the producer without
    idempotence may repeat records."""
    findings = []
    expected: dict[str, int] = {}
    for record in content.records:
        producer, _, number_text = (record.key or "?//-1").split("/")
        number = int(number_text)
        expected.setdefault(producer, number if content.start else 0)
        if number == expected[producer]:
            expected[producer] += 1
        elif number > expected[producer]:
            findings.append(f"partition {partition}: {record.key} follows {producer}'s {expected[producer] - 1}")
            expected[producer] = number + 1
        elif producer.startswith("idempotent"):
            findings.append(f"partition {partition}: {record.key} is there again at offset {record.offset}")
    for (producer, its_partition), count in sent.items():
        if its_partition == partition and expected.get(producer, 0) != count:
            findings.append(f"partition {partition}: {producer} sent {count}, there are {expected.get(producer, 0)}")
    return findings


def audit_acknowledged(journal: Journal, contents: Mapping[int, Content]) -> Findings:
    """Each acknowledged record is at its acknowledged offset, unless it was deleted."""
    findings = []
    for producer, partition, number, offset in journal.of("ack"):
        key, content = f"{producer}/{partition}/{number}", contents[partition]
        if not 0 <= offset < content.start + len(content.records):
            findings.append(f"partition {partition}: {key} was acknowledged at {offset}, behind the end")
        elif offset >= content.start and (found := content.records[offset - content.start].key) != key:
            findings.append(f"partition {partition}: {key} was acknowledged at {offset}, where {found} is")
    return findings


def audit_seen(journal: Journal, contents: Mapping[int, Content]) -> Findings:
    """A reader received the final contents, in order, once."""
    findings = []
    next_offset: dict[int, int] = defaultdict(int)
    for partition, offset, key in journal.of("seen"):
        if offset != next_offset[partition]:
            findings.append(f"partition {partition}: the reader came to {offset} instead of {next_offset[partition]}")
        next_offset[partition] = offset + 1
        records = contents[partition].records
        if offset >= len(records) or records[offset].key != key:
            findings.append(f"partition {partition}: the reader saw {key} at {offset}, which is no longer there")
    return findings


def audit_ends(journal: Journal, ends: Mapping[int, int]) -> Findings:
    """Just after a restart, all records acknowledged so far are readable."""
    acknowledged: dict[int, int] = defaultdict(lambda: -1)
    for _, partition, _, offset in journal.of("ack"):
        acknowledged[partition] = max(acknowledged[partition], offset)
    return [
        f"partition {partition}: ends at {ends[partition]}, but {offset} was acknowledged"
        for partition, offset in acknowledged.items()
        if ends[partition] <= offset
    ]


def audit_commits(
    before: Sequence[Entry], after: Sequence[Entry], members: Mapping[int, int], lone: Mapping[int, int]
) -> Findings:
    """Committed offsets are not below the last acknowledged `before` the query, nor above the last attempted `after`
    it."""
    findings = []
    for kind, found in (("member", members), ("lone", lone)):
        for partition, offset in highest(before, kind).items():
            if found[partition] < offset:
                findings.append(f"{kind}: {offset} was acknowledged for {partition}, {found[partition]} is committed")
    for partition, offset in highest(after, "try").items():
        if lone[partition] > offset:
            findings.append(f"lone: {lone[partition]} is committed for {partition}, {offset} is the highest tried")
    return findings


def highest(entries: Sequence[Entry], kind: str) -> dict[int, int]:
    """Return by partition the highest offset in the entries of a kind (partition, offset)."""
    found: dict[int, int] = {}
    for its_kind, *fields in entries:
        if its_kind == kind:
            found[fields[0]] = max(found.get(fields[0], -1), fields[1])
    return found


def audit_found(journal: Journal) -> Findings:
    """A group's committed offsets are those of its last acknowledged commit."""
    findings = []
    committed: dict[int, int] = {}
    for kind, *fields in journal.entries:
        if kind == "lone":
            committed[fields[0]] = fields[1]
        elif kind == "found" and fields[1] < committed.get(fields[0], -1):
            findings.append(f"partition {fields[0]}: {committed[fields[0]]} was acknowledged, {fields[1]} is found")
    return findings


def audit_member(journal: Journal) -> Findings:
    """A member that gets its partitions back continues at its last acknowledged commit, or later."""
    findings = []
    committed: dict[int, int] = {}
    for kind, *fields in journal.entries:
        if kind == "member":
            committed[fields[0]] = max(committed.get(fields[0], -1), fields[1])
        elif kind == "first" and fields[1] < committed.get(fields[0], -1):
            findings.append(f"partition {fields[0]}: goes on at {fields[1]}, {committed[fields[0]]} was committed")
    return findings


def audit_compacted(journal: Journal, contents: Mapping[int, Content]) -> Findings:
    """The newest record of each key exists unchanged; only overwritten acknowledged records are missing."""
    findings = []
    newest: dict[str, tuple[int, int]] = {}
    present: dict[tuple[int, int], tuple[str, int]] = {}
    for partition, content in contents.items():
        before = -1
        for record in content.records:
            key, number = record.key or "?", int(record.headers["n"])
            if record.offset <= before:
                findings.append(f"partition {partition}: offset {record.offset} follows {before}")
            if key in newest and newest[key][0] >= number:
                findings.append(f"{key}: number {number} at {record.offset} comes after number {newest[key][0]}")
            if record.value is not None and record.value != body(f"{key}/{number}"):
                findings.append(f"partition {partition}: offset {record.offset} holds a value that no client sent")
            newest[key] = number, record.offset
            present[partition, record.offset] = key, number
            before = record.offset
    for key, number in journal.of("last"):
        if newest.get(key, (-1, -1))[0] != number:
            findings.append(f"{key}: the last record is number {number}, there is {newest.get(key)}")
    for partition, key, number, offset in journal.of("ack"):
        if present.get((partition, offset), (key, number)) != (key, number):
            findings.append(f"partition {partition}: number {number} was acknowledged at {offset}; another is there")
        elif (partition, offset) not in present and newest.get(key, (-1, -1))[1] < offset:
            findings.append(f"{key}: number {number}, acknowledged at {offset}, is gone and nothing replaced it")
    return findings


def audit_lives(journal: Journal, topics: set[str], contents: Mapping[str, Mapping[int, Content]]) -> Findings:
    """Topics exist or not as last acknowledged, and contain only records of their current incarnation."""
    findings = []
    state: dict[str, tuple[str, int]] = {}
    for kind, *fields in journal.entries:
        if kind in ("creating", "created", "wrote", "deleting", "deleted"):
            state[fields[0]] = kind, fields[1]
    for name, (kind, life) in state.items():
        if kind == "deleted" and name in topics:
            findings.append(f"{name}: its life {life} was deleted, but it is there")
        if kind in ("created", "wrote") and name not in topics:
            findings.append(f"{name}: its life {life} was created, but it is not there")
        values = sorted(r.value or b"" for c in contents.get(name, {}).values() for r in c.records)
        if kind == "wrote" and name in topics:
            expected = sorted(f"{life}/{number}".encode() for number in range(5))
            if values != expected:
                findings.append(f"{name}: holds {values} in life {life}")
    return findings
