"""Names of snapshots, manifests, and which snapshots are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock_operator.snapshots.manifest import (
    complete_snapshots,
    expired_files,
    name_at,
    taken_at,
)

NOW = datetime(2026, 3, 10, 12, 0, 0, tzinfo=UTC)


def files(*days_ago: int) -> list[str]:
    names = [name_at(NOW - timedelta(days=days)) for days in days_ago]
    return [name + suffix for name in names for suffix in (".db", ".json")]


def test_a_name_has_the_time_of_the_snapshot() -> None:
    assert name_at(NOW) == "etcd-20260310T120000Z"
    assert taken_at(name_at(NOW)) == NOW
    assert taken_at("etcd-20261310T120000Z") is None
    assert taken_at("../etcd-20260310T120000Z") is None


def test_the_newest_ones_are_kept_by_number_and_age() -> None:
    assert expired_files(files(0, 1, 2, 3), 2, 30, NOW) == sorted(
        files(2, 3), key=lambda f: (not f.endswith(".json"), f)
    )
    assert expired_files(files(0, 1, 40), 9, 30, NOW) == [
        f"{name_at(NOW - timedelta(days=40))}{s}" for s in (".json", ".db")
    ]
    assert expired_files(files(0, 1), 9, 30, NOW) == []


def test_the_newest_complete_one_is_kept_also_if_it_is_too_old() -> None:
    assert expired_files(files(90), 1, 30, NOW) == []


def test_incomplete_snapshots_are_ignored_and_removed_and_files_of_others_stay() -> None:
    incomplete = [f"{name_at(NOW)}.db", f"{name_at(NOW - timedelta(days=2))}.json"]
    there = [*files(1), *incomplete, "notes.db", "README", "etcd-.json"]
    assert complete_snapshots(there) == [name_at(NOW - timedelta(days=1))]
    assert sorted(expired_files(there, 1, 30, NOW)) == sorted(incomplete)
