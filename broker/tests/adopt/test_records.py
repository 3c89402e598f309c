"""Conversion of a single broker's records, and the controller's treatment of the adopted broker."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import adopt_kit
import pytest
from adopt_kit import ABSENCES, BROKER, FLIGHTS, Failing, adopt, make_directory

from penstock.adopt.move import batches
from penstock.adopt.records import COPIED_PREFIXES, DROPPED_PREFIXES, convert_records
from penstock.adopt.source import CannotAdopt
from penstock.control.controller.leaders import ReplicaFacts, reconcile
from penstock.control.controller.registry import Registry
from penstock.control.members import partition_name
from penstock.control.membership import Registration, ensure_cluster
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.records import BrokerRecord, PartitionRecord, decode
from penstock.state.store import DeleteOp, Operation, PutOp, StoreEntry

HOLD_OTHERS = {keys.ROOT, keys.METADATA}
OTHERWISE = {keys.CLUSTER, keys.ADOPTION, keys.PARTITIONS}


def test_it_is_decided_for_every_kind_of_key_whether_a_cluster_has_it() -> None:
    texts = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}
    known = {text for text in texts if text.startswith(keys.ROOT)} - HOLD_OTHERS
    assert known - set(COPIED_PREFIXES) - set(DROPPED_PREFIXES) == OTHERWISE


def test_what_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(CannotAdopt, match="/penstock/v1/acls/1"):
        convert_records([StoreEntry(keys.ROOT + "acls/1", b"{}", 1, 1, 1)], BROKER, 5)


async def test_most_records_are_the_same_and_processes_and_revisions_stay_behind(
    tmp_path: Path, store: Failing
) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    before, after = adopt_kit.records(), await adopt_kit.contents(store)
    changed = {key for key in before if key in after and after[key] != before[key]}
    assert changed == {keys.partition(FLIGHTS, 0), keys.partition(FLIGHTS, 1), keys.partition(ABSENCES, 0)}
    assert before.keys() - after.keys() == {keys.CONTROLLER, keys.broker(BROKER), keys.shard_cleaned(3)}
    assert after.keys() - before.keys() == {keys.METADATA + "broker-pasts/0"}


async def led_after(store: Failing, directory_id: UUID, was_unclean: bool = False) -> PartitionRecord | None:
    """Return the controller's change of a partition after the broker has registered with a directory."""
    await ensure_cluster(store, uuid4)
    record = BrokerRecord(
        broker_id=BROKER, incarnation=uuid4(), endpoints=[], directory_id=directory_id, was_unclean=was_unclean
    )
    epoch = await Registration(store, SystemClock(), record, 9000).register()
    registry = Registry(store, lambda changed: None)
    await registry.load()
    key = keys.partition(FLIGHTS, 0)
    entry = await store.get(key)
    assert entry is not None
    name = partition_name(FLIGHTS, 0)
    facts = ReplicaFacts(
        {BROKER: epoch},
        registry.revision,
        replica_condition=lambda broker, at: registry.replica_condition(broker, at, True, name),
    )
    return reconcile(decode(PartitionRecord, key, entry.value), facts)


@pytest.mark.parametrize("was_unclean", [False, True])
async def test_the_broker_leads_what_it_had_in_a_new_leader_epoch(
    tmp_path: Path, store: Failing, was_unclean: bool
) -> None:
    directory_id = await make_directory(tmp_path)
    await adopt(tmp_path, store)
    led = await led_after(store, directory_id, was_unclean)
    assert led is not None
    assert (led.leader, led.isr, led.eligible, led.last_isr) == (BROKER, [BROKER], [], [])
    assert led.leader_epoch > 4
    assert led.isr_epochs[0] > 0


async def test_an_empty_directory_with_the_same_id_does_not_lead(tmp_path: Path, store: Failing) -> None:
    await make_directory(tmp_path)
    await adopt(tmp_path, store)
    assert await led_after(store, uuid4()) is None, "there is no leader until an administrator accepts the data loss"


def test_a_partition_with_other_replicas_is_refused() -> None:
    value = b'{"replicas":[0,1],"leader":0,"isr":[0]}'
    with pytest.raises(CannotAdopt, match="not the directory of a single broker"):
        convert_records([StoreEntry(keys.partition(FLIGHTS, 0), value, 1, 1, 1)], BROKER, 5)


def test_transactions_stay_within_their_bounds() -> None:
    operations: list[Operation] = [PutOp(f"/{n}", b"x" * 300_000) for n in range(10)]
    operations += [DeleteOp(f"/d{n}") for n in range(300)]
    made = list(batches(operations))
    assert [operation for batch in made for operation in batch] == operations
    assert max(map(len, made)) <= 128
    assert all(sum(len(o.value) for o in batch if isinstance(o, PutOp)) <= 1 << 20 for batch in made)
    assert list(batches([])) == []


def test_what_is_set_for_groups_is_carried_over_as_it_is() -> None:
    value = b'{"settings":{"penstock.owner":"uid"},"changed_ms":1}'
    wanted = convert_records([StoreEntry(keys.group_settings("g"), value, 1, 1, 1)], BROKER, 5)
    assert wanted.values == {keys.group_settings("g"): value}
