"""docs/reference/store.md lists every kind of key, with a value that is a valid record with all fields."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from penstock.adopt.move import AdoptionRecord
from penstock.control import members
from penstock.control.elections import ElectionRecord
from penstock.control.members import AbsenceRecord, BrokerHistoryRecord, LeavingRecord
from penstock.control.restored.reports import BrokerReport, ReportChunk, RestoredRecord
from penstock.state import keys, records, security_records, shrink_records

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "store.md"
TOPIC = UUID("c94c07d9-84b3-4cce-ad48-3ef13cb4fe22")
READ_ORDERS = security_records.AclRecord(
    resource_type="TOPIC", pattern_type="LITERAL", name="orders", principal="User:ana", host="*", operation="READ",
    permission="ALLOW",
)  # fmt: skip
ROW = re.compile(r"^\| `\$V/(\S+)` \| .* \| `(.*)` \|$", re.MULTILINE)

KINDS = {
    keys.CLUSTER: records.ClusterRecord,
    keys.CONTROLLER: records.ControllerRecord,
    keys.election(7): ElectionRecord,
    keys.RESTORED: RestoredRecord,
    keys.broker(1): records.BrokerRecord,
    keys.broker_config(None): records.BrokerConfigRecord,
    members.history_key(1): BrokerHistoryRecord,
    members.leaving_key(1): LeavingRecord,
    members.absence_key(1): AbsenceRecord,
    keys.topic(TOPIC): records.TopicRecord,
    keys.topic_name("flights"): records.TopicNameRecord,
    keys.partition(TOPIC, 0): records.PartitionRecord,
    keys.shrink(TOPIC): shrink_records.ShrinkRecord,
    keys.seal(TOPIC, 2): shrink_records.SealRecord,
    keys.relay(TOPIC, 2): shrink_records.RelayRecord,
    keys.scram_credential("ana", "SCRAM-SHA-256"): security_records.ScramCredentialRecord,
    keys.acl(READ_ORDERS): security_records.AclRecord,
    keys.ACL_CHANGE: None,
    keys.client_quota({"user": "ana", "client-id": None}): security_records.ClientQuotaRecord,
    keys.shard(15): records.ShardRecord,
    keys.group("app"): records.GroupRecord,
    keys.group_member("app", "m-1"): records.ModernMemberRecord,
    keys.group_settings("app"): records.GroupSettingsRecord,
    keys.offset("app", TOPIC, 0): records.OffsetRecord,
    keys.transaction("orders-1"): records.TransactionRecord,
    keys.txn_offset("app", 1000, TOPIC, 0): records.TxnOffsetRecord,
    keys.share_state("app", TOPIC, 0): None,
    keys.shard_fence(15): records.ShardFenceRecord,
    keys.shard_cleaned(15): records.ShardCleanedRecord,
    keys.PRODUCER_IDS: records.ProducerIdsRecord,
    keys.SECURITY: security_records.SecurityRecord,
    keys.ENROLLED: None,
    keys.ADOPTION: AdoptionRecord,
    keys.report(1): BrokerReport,
    keys.report_chunk(1, 0): ReportChunk,
}
"""A key of each kind and the type of its value (None: not a record)."""


def rows() -> dict[str, str]:
    return {keys.ROOT + re.sub(r"/T(?=/|$)", f"/{TOPIC}", key): value for key, value in ROW.findall(PAGE.read_text())}


def test_every_kind_of_key_is_on_the_page_and_no_other() -> None:
    assert rows().keys() == KINDS.keys()


def test_every_place_where_keys_are_made_is_on_the_page() -> None:
    prefixes = {
        value
        for module in (keys, members)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str) and value.startswith(keys.ROOT)
    } - {keys.ROOT, keys.METADATA, members.BROKER_PREFIX}
    missing = {prefix for prefix in prefixes if not any(key.startswith(prefix) for key in rows())}
    assert not missing


@pytest.mark.parametrize("key", [key for key, kind in KINDS.items() if kind is not None])
def test_a_value_on_the_page_is_a_record_with_all_its_fields(key: str) -> None:
    kind, text = KINDS[key], rows()[key].encode()
    record = records.decode(kind, key, text)
    assert set(msgspec.json.decode(text)) == set(kind.__struct_fields__)
    assert msgspec.json.decode(records.encode(record)) == msgspec.json.decode(text)
