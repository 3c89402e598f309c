"""The protocol's APIs: keys, supported versions, header versions.

Used by the broker to dispatch requests and by the client to negotiate versions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ApiKey(IntEnum):
    """APIs whose messages are known; the dispatcher's routes define which of them the broker serves."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class ApiDescription(NamedTuple):
    """Supported versions `first` to `last`; tagged fields from `flexible_from`. `name` is the protocol's."""

    name: str
    first: int
    last: int
    flexible_from: int


NEVER = 1 << 15

APIS: dict[int, ApiDescription] = {
    ApiKey.PRODUCE: ApiDescription("Produce", 3, 13, 9),
    ApiKey.FETCH: ApiDescription("Fetch", 4, 18, 12),
    ApiKey.LIST_OFFSETS: ApiDescription("ListOffsets", 1, 11, 6),
    ApiKey.METADATA: ApiDescription("Metadata", 0, 13, 9),
    ApiKey.OFFSET_COMMIT: ApiDescription("OffsetCommit", 2, 10, 8),
    ApiKey.OFFSET_FETCH: ApiDescription("OffsetFetch", 1, 10, 6),
    ApiKey.FIND_COORDINATOR: ApiDescription("FindCoordinator", 0, 6, 3),
    ApiKey.JOIN_GROUP: ApiDescription("JoinGroup", 0, 9, 6),
    ApiKey.HEARTBEAT: ApiDescription("Heartbeat", 0, 4, 4),
    ApiKey.LEAVE_GROUP: ApiDescription("LeaveGroup", 0, 5, 4),
    ApiKey.SYNC_GROUP: ApiDescription("SyncGroup", 0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: ApiDescription("DescribeGroups", 0, 6, 5),
    ApiKey.LIST_GROUPS: ApiDescription("ListGroups", 0, 5, 3),
    ApiKey.SASL_HANDSHAKE: ApiDescription("SaslHandshake", 0, 1, NEVER),
    ApiKey.API_VERSIONS: ApiDescription("ApiVersions", 0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiDescription("CreateTopics", 2, 7, 5),
    ApiKey.DELETE_TOPICS: ApiDescription("DeleteTopics", 1, 6, 4),
    ApiKey.DELETE_RECORDS: ApiDescription("DeleteRecords", 0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiDescription("InitProducerId", 0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiDescription("OffsetForLeaderEpoch", 2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiDescription("AddPartitionsToTxn", 0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiDescription("AddOffsetsToTxn", 0, 4, 3),
    ApiKey.END_TXN: ApiDescription("EndTxn", 0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: ApiDescription("WriteTxnMarkers", 1, 2, 1),
    ApiKey.TXN_OFFSET_COMMIT: ApiDescription("TxnOffsetCommit", 0, 5, 3),
    ApiKey.DESCRIBE_CONFIGS: ApiDescription("DescribeConfigs", 1, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiDescription("AlterConfigs", 0, 2, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiDescription("AlterReplicaLogDirs", 1, 2, 2),
    ApiKey.DESCRIBE_LOG_DIRS: ApiDescription("DescribeLogDirs", 1, 5, 2),
    ApiKey.SASL_AUTHENTICATE: ApiDescription("SaslAuthenticate", 0, 2, 2),
    ApiKey.CREATE_PARTITIONS: ApiDescription("CreatePartitions", 0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiDescription("DeleteGroups", 0, 2, 2),
    ApiKey.ELECT_LEADERS: ApiDescription("ElectLeaders", 0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiDescription("IncrementalAlterConfigs", 0, 1, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiDescription("AlterPartitionReassignments", 0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiDescription("ListPartitionReassignments", 0, 0, 0),
    ApiKey.OFFSET_DELETE: ApiDescription("OffsetDelete", 0, 0, NEVER),
    ApiKey.DESCRIBE_QUORUM: ApiDescription("DescribeQuorum", 0, 2, 0),
    ApiKey.UPDATE_FEATURES: ApiDescription("UpdateFeatures", 0, 2, 0),
    ApiKey.DESCRIBE_CLUSTER: ApiDescription("DescribeCluster", 0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: ApiDescription("DescribeProducers", 0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiDescription("DescribeTransactions", 0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: ApiDescription("ListTransactions", 0, 2, 0),
    ApiKey.LIST_CONFIG_RESOURCES: ApiDescription("ListConfigResources", 0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiDescription("DescribeTopicPartitions", 0, 0, 0),
}
"""Supported versions. Produce is advertised from version 0, as several clients require, and served from version 3."""

CLIENT_ONLY = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that the client uses and the broker does not serve."""

UNSERVED = {
    29: "DescribeAcls",
    30: "CreateAcls",
    31: "DeleteAcls",
    48: "DescribeClientQuotas",
    49: "AlterClientQuotas",
    68: "ConsumerGroupHeartbeat",
    69: "ConsumerGroupDescribe",
    71: "GetTelemetrySubscriptions",
    76: "ShareGroupHeartbeat",
    78: "ShareFetch",
}
"""Names of APIs that are not served, for error messages."""


def api_name(api_key: int) -> str:
    """Return an API's name for messages, also if the key is unknown."""
    api = APIS.get(api_key)
    return api.name if api is not None else UNSERVED.get(api_key, f"with key {api_key}")


def request_header_version(api_key: int, version: int) -> int:
    """Return 2 (with tagged fields) for flexible versions, else 1; 1 for unknown APIs."""
    api = APIS.get(api_key)
    return 2 if api is not None and version >= api.flexible_from else 1


def response_header_version(api_key: int, version: int) -> int:
    """Return 1 (with tagged fields) for flexible versions, else 0. Always 0 for ApiVersions, whose version is not
    negotiated yet (KIP-511).
    """
    api = APIS.get(api_key)
    flexible = api is not None and version >= api.flexible_from
    return 1 if flexible and api_key != ApiKey.API_VERSIONS else 0
