"""The audits report each kind of loss, in constructed journals and contents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_crash import audit
from penstock_crash.journal import Journal, JournalWriter
from penstock_crash.load import body
from penstock_crash.reading import Content, Read

KEYS = ["idempotent/0/0", "plain/0/0", "idempotent/0/1", "plain/0/1", "plain/0/0", "plain/0/1", "idempotent/0/2"]
"""Keys of a correct partition: the producer without idempotence has repeated records."""


def record(offset: int, key: str) -> Read:
    return Read(offset, key, body(key), {})


def content(keys: list[str]) -> Content:
    return Content(0, len(keys), [record(offset, key) for offset, key in enumerate(keys)])


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    writer = JournalWriter(tmp_path / "journal")
    for offset, key in enumerate(KEYS):
        writer.write("seen", 0, offset, key)
        producer, _, number = key.split("/")
        writer.write("ack", producer, 0, int(number), offset)
    writer.write("sent", "idempotent", 0, 3)
    writer.write("sent", "plain", 0, 2)
    read = Journal(tmp_path / "journal")
    read.read()
    return read


def test_a_sound_partition_has_no_findings(journal: Journal) -> None:
    assert audit.audit_produced(journal, {0: content(KEYS)}) == []
    assert audit.audit_ends(journal, {0: len(KEYS)}) == []


def without_last(keys: list[str]) -> None:
    del keys[-1]


def without_first(keys: list[str]) -> None:
    del keys[0]


def swapped(keys: list[str]) -> None:
    keys[0], keys[2] = keys[2], keys[0]


def repeated(keys: list[str]) -> None:
    keys.append("idempotent/0/2")


def never_sent(keys: list[str]) -> None:
    keys.append("idempotent/0/3")


@pytest.mark.parametrize("change", [without_last, without_first, swapped, repeated, never_sent])
def test_what_is_missing_misplaced_repeated_or_made_up_is_a_finding(
    journal: Journal, change: Callable[[list[str]], None]
) -> None:
    keys = list(KEYS)
    change(keys)
    assert audit.audit_produced(journal, {0: content(keys)})


def test_a_gap_a_changed_value_and_an_unread_end_are_findings(journal: Journal) -> None:
    sound = content(KEYS)
    gap = [*sound.records[:-1], dataclasses.replace(sound.records[-1], offset=len(KEYS))]
    changed = [dataclasses.replace(sound.records[0], value=b"something else"), *sound.records[1:]]
    for records, end in ((gap, len(KEYS) + 1), (changed, len(KEYS)), (sound.records, len(KEYS) + 1)):
        assert audit.audit_offsets(0, Content(0, end, records))


def test_where_the_beginning_was_deleted_the_rest_is_held_to_the_same(journal: Journal) -> None:
    rest = Content(3, len(KEYS), content(KEYS).records[3:])
    journal.entries = [entry for entry in journal.entries if entry[0] != "seen"]
    assert audit.audit_produced(journal, {0: rest}) == []
    assert audit.audit_produced(journal, {0: dataclasses.replace(rest, records=rest.records[1:])})
    assert audit.audit_produced(journal, {0: dataclasses.replace(rest, records=rest.records[:-1])})


def test_an_end_that_falls_behind_an_acknowledgement_is_a_finding(journal: Journal) -> None:
    assert audit.audit_ends(journal, {0: len(KEYS) - 1})


def test_a_commit_that_goes_back_or_was_never_tried_is_a_finding() -> None:
    before = [["try", 0, 5], ["lone", 0, 5], ["member", 1, 9]]
    after = [*before, ["try", 0, 6]]
    assert audit.audit_commits(before, after, {0: -1, 1: 9}, {0: 6, 1: -1}) == []
    assert audit.audit_commits(before, after, {0: -1, 1: 8}, {0: 6, 1: -1})
    assert audit.audit_commits(before, after, {0: -1, 1: 9}, {0: 4, 1: -1})
    assert audit.audit_commits(before, after, {0: -1, 1: 9}, {0: 7, 1: -1})


def test_a_member_that_goes_on_before_its_commit_is_a_finding(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")
    journal.entries = [["first", 0, 0], ["member", 0, 9], ["first", 0, 9]]
    assert audit.audit_member(journal) == []
    journal.entries.append(["first", 0, 8])
    assert audit.audit_member(journal)


def test_an_acknowledged_commit_that_is_not_found_again_is_a_finding(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")
    journal.entries = [["lone", 0, 5], ["found", 0, 5], ["try", 0, 6], ["found", 0, 6]]
    assert audit.audit_found(journal) == []
    journal.entries.append(["found", 0, 4])
    assert audit.audit_found(journal)


def compacted(*rows: tuple[int, str, int]) -> dict[int, Content]:
    """Return the contents with these remaining records: (offset, key, number)."""
    records = [Read(o, key, body(f"{key}/{n}"), {"n": str(n).encode()}) for o, key, n in rows]
    return {0: Content(0, 4, records)}


def test_a_compacted_partition_may_lose_only_what_was_overwritten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")
    journal.entries = [["ack", 0, "k1", 0, 0], ["ack", 0, "k2", 1, 1], ["ack", 0, "k1", 2, 2], ["ack", 0, "k1", 3, 3]]
    journal.entries += [["last", "k1", 3], ["last", "k2", 1]]
    assert audit.audit_compacted(journal, compacted((1, "k2", 1), (3, "k1", 3))) == []
    assert audit.audit_compacted(journal, compacted((3, "k1", 3))), "a key is gone"
    assert audit.audit_compacted(journal, compacted((1, "k2", 1), (2, "k1", 2))), "an old record stands for a key"
    assert audit.audit_compacted(journal, compacted((0, "k2", 1), (3, "k1", 3))), "an offset was given anew"


def test_topics_that_are_not_as_acknowledged_are_findings(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "none")
    journal.entries = [["created", "a", 1], ["wrote", "a", 1, 5], ["deleted", "b", 1]]
    values = [f"1/{n}".encode() for n in range(5)]
    written = {0: Content(0, 5, [Read(n, None, value, {}) for n, value in enumerate(values)])}
    assert audit.audit_lives(journal, {"a"}, {"a": written}) == []
    assert audit.audit_lives(journal, set(), {}), "a created topic is gone"
    assert audit.audit_lives(journal, {"a", "b"}, {"a": written}), "a deleted topic is there"
    assert audit.audit_lives(journal, {"a"}, {"a": {0: Content(0, 0, [])}}), "its records are gone"
