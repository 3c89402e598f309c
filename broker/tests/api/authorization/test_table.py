"""The rights that each API requires, written out: a changed row of the table is a changed promise."""

from __future__ import annotations

from penstock.api.authorization.reference import rows

REQUIRED = {
    "AddOffsetsToTxn": {"READ GROUP", "WRITE TRANSACTIONAL_ID"},
    "AddPartitionsToTxn": {"CLUSTER_ACTION CLUSTER", "WRITE TOPIC", "WRITE TRANSACTIONAL_ID"},
    "AlterClientQuotas": {"ALTER_CONFIGS CLUSTER"},
    "AlterConfigs": {"ALTER_CONFIGS CLUSTER", "ALTER_CONFIGS GROUP", "ALTER_CONFIGS TOPIC"},
    "AlterPartitionReassignments": {"ALTER CLUSTER"},
    "AlterReplicaLogDirs": {"ALTER CLUSTER"},
    "AlterUserScramCredentials": {"ALTER CLUSTER"},
    "ApiVersions": set(),
    "ConsumerGroupDescribe": {"DESCRIBE GROUP", "DESCRIBE TOPIC"},
    "ConsumerGroupHeartbeat": {"DESCRIBE TOPIC", "READ GROUP"},
    "CreateAcls": {"ALTER CLUSTER"},
    "CreatePartitions": {"ALTER TOPIC"},
    "CreateTopics": {"CREATE TOPIC or CREATE CLUSTER", "DESCRIBE_CONFIGS TOPIC"},
    "DeleteAcls": {"ALTER CLUSTER"},
    "DeleteGroups": {"DELETE GROUP"},
    "DeleteRecords": {"DELETE TOPIC"},
    "DeleteTopics": {"DELETE TOPIC or DELETE CLUSTER", "DESCRIBE TOPIC or DELETE CLUSTER"},
    "DescribeAcls": {"DESCRIBE CLUSTER"},
    "DescribeClientQuotas": {"DESCRIBE_CONFIGS CLUSTER"},
    "DescribeCluster": set(),
    "DescribeConfigs": {"DESCRIBE_CONFIGS CLUSTER", "DESCRIBE_CONFIGS GROUP", "DESCRIBE_CONFIGS TOPIC"},
    "DescribeGroups": {"DESCRIBE GROUP"},
    "DescribeLogDirs": {"DESCRIBE CLUSTER"},
    "DescribeProducers": {"READ TOPIC"},
    "DescribeQuorum": {"DESCRIBE CLUSTER"},
    "DescribeTopicPartitions": {"DESCRIBE TOPIC"},
    "DescribeTransactions": {"DESCRIBE TOPIC", "DESCRIBE TRANSACTIONAL_ID"},
    "DescribeUserScramCredentials": {"DESCRIBE CLUSTER"},
    "ElectLeaders": {"ALTER CLUSTER"},
    "EndTxn": {"WRITE TRANSACTIONAL_ID"},
    "Fetch": {"CLUSTER_ACTION CLUSTER", "READ TOPIC"},
    "FindCoordinator": {"DESCRIBE GROUP", "DESCRIBE TRANSACTIONAL_ID", "CLUSTER_ACTION CLUSTER"},
    "Heartbeat": {"READ GROUP"},
    "IncrementalAlterConfigs": {"ALTER_CONFIGS CLUSTER", "ALTER_CONFIGS GROUP", "ALTER_CONFIGS TOPIC"},
    "InitProducerId": {"WRITE TRANSACTIONAL_ID", "WRITE any TOPIC or IDEMPOTENT_WRITE CLUSTER"},
    "JoinGroup": {"READ GROUP"},
    "LeaveGroup": {"READ GROUP"},
    "ListConfigResources": {"DESCRIBE_CONFIGS CLUSTER"},
    "ListGroups": {"DESCRIBE GROUP or DESCRIBE CLUSTER"},
    "ListOffsets": {"DESCRIBE TOPIC"},
    "ListPartitionReassignments": {"DESCRIBE CLUSTER"},
    "ListTransactions": {"DESCRIBE TRANSACTIONAL_ID"},
    "Metadata": {"CREATE TOPIC or CREATE CLUSTER", "DESCRIBE TOPIC"},
    "OffsetCommit": {"READ GROUP", "READ TOPIC"},
    "OffsetDelete": {"DELETE GROUP", "READ TOPIC"},
    "ShareGroupHeartbeat": {"READ GROUP", "DESCRIBE TOPIC"},
    "ShareGroupDescribe": {"DESCRIBE GROUP", "DESCRIBE TOPIC"},
    "ReadShareGroupState": {"CLUSTER_ACTION CLUSTER"},
    "WriteShareGroupState": {"CLUSTER_ACTION CLUSTER"},
    "DescribeShareGroupOffsets": {"DESCRIBE GROUP", "DESCRIBE TOPIC"},
    "AlterShareGroupOffsets": {"READ GROUP", "READ TOPIC"},
    "DeleteShareGroupOffsets": {"DELETE GROUP", "READ TOPIC"},
    "OffsetFetch": {"DESCRIBE GROUP", "DESCRIBE TOPIC"},
    "OffsetForLeaderEpoch": {"DESCRIBE TOPIC or CLUSTER_ACTION CLUSTER"},
    "Produce": {"WRITE TOPIC", "WRITE TRANSACTIONAL_ID"},
    "SaslAuthenticate": set(),
    "SaslHandshake": set(),
    "SyncGroup": {"READ GROUP"},
    "TxnOffsetCommit": {"READ GROUP", "READ TOPIC", "WRITE TRANSACTIONAL_ID"},
    "UpdateFeatures": {"ALTER CLUSTER"},
    "WriteTxnMarkers": {"ALTER CLUSTER or CLUSTER_ACTION CLUSTER"},
}
"""The rights by API, as in Kafka's documentation of operations and resources."""


def required() -> dict[str, set[str]]:
    """Return the rights in the table by API."""
    found: dict[str, set[str]] = {}
    for api, right, _ in rows():
        rights = found.setdefault(api, set())
        if right:
            rights.add(right.replace("`", "").replace(" on ", " "))
    return found


def test_each_api_requires_these_rights() -> None:
    found = required()
    assert {api: found.get(api) for api in REQUIRED} == REQUIRED


def test_only_apis_of_share_groups_are_not_written_out() -> None:
    assert all("Share" in api for api in required().keys() - REQUIRED.keys())
