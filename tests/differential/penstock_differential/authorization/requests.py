"""Every served API as the user of a case asks it: about resources with and without rights, existing and missing.

The order matters: reads, then writes, then requests that create and delete what the others name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock_differential.authorization.grants import Names
from penstock_differential.families.migrations import consumer_tree
from penstock_differential.families.share_world import (
    FINAL,
    MEMBER,
    ack,
    ack_tree,
    alter_tree,
    describe_tree,
    heartbeat_tree,
    share_fetch_tree,
)
from penstock_differential.families.transactions import init_tree
from penstock_differential.families.world import commit_tree, join_tree, records, sync_tree, topic_id
from penstock_differential.values import UNKNOWN_ID, BatchSpec, Ref, Tree

TRANSACTIONAL = 0x10
"""Bit of a batch's attributes."""
ANY_PRODUCER = 4_000_000
"""A producer id that no broker of a run assigns."""
CONFIG_TOPIC, CONFIG_GROUP, CONFIG_BROKER, CONFIG_LOGGER = 2, 32, 4, 8
GROUP_KEY, TRANSACTION_KEY = 0, 1
Question = tuple[str, Tree, tuple[int, ...]]
"""An API, a request, and the versions in which it is sent."""


def by_name(names: Sequence[str], part: Tree, field: str = "name", parts: str = "partitions") -> list[Tree]:
    """Return an element for each topic, with one partition."""
    return [{field: name, parts: [part]} for name in names]


def by_id(names: Sequence[str], part: Tree, parts: str = "partitions") -> list[Tree]:
    """Return an element for each id of these topics, and one for an unknown id."""
    ids = [*(Ref(f"id:{name}") for name in names), UNKNOWN_ID]
    return [{"topic_id": each, parts: [part]} for each in ids]


def questions(names: Names) -> Iterator[Question]:
    """Yield all requests in their order."""
    yield from topic_reads(names)
    yield from group_reads(names)
    yield from cluster_reads(names)
    yield from writes(names)
    yield from group_writes(names)
    yield from consumer_groups(names)
    yield from share_groups(names)
    yield from transaction_writes(names)
    yield from administration(names)
    yield from acl_administration(names)
    yield from creations_and_deletions(names)


def topic_reads(names: Names) -> Iterator[Question]:
    """Yield requests that read topics, by name and by id."""
    topics, existing = names.topics(), names.existing("t")
    seen: Tree = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
        "allow_auto_topic_creation": False,
    }
    yield "Metadata", {"topics": [{"name": name} for name in existing]}, (0, 1, 3)
    yield "Metadata", {"topics": [{"name": name} for name in topics], **seen}, (4, 7, 8, 10, 11, 12, 13)
    yield "Metadata", {"topics": None, **seen}, (1, 8, 10, 13)
    yield "Metadata", {"topics": [], **seen}, (1, 13)
    ids = [*(Ref(f"id:{name}") for name in existing), UNKNOWN_ID]
    yield "Metadata", {"topics": [{"topic_id": each, "name": None} for each in ids], **seen}, (12, 13)
    for each in ids:
        yield "Metadata", {"topics": [{"topic_id": each, "name": None}], **seen}, (12,)
    yield "DescribeTopicPartitions", {"topics": [{"name": name} for name in topics]}, (0,)
    yield "DescribeTopicPartitions", {"topics": []}, (0,)
    listed: Tree = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    yield "ListOffsets", {"replica_id": -1, "topics": by_name(topics, listed)}, (1, 4, 10)
    epoch: Tree = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    yield "OffsetForLeaderEpoch", {"replica_id": -1, "topics": by_name(topics, epoch, "topic")}, (2, 3, 4)
    yield "DescribeProducers", {"topics": by_name(topics, 0, parts="partition_indexes")}, (0,)
    part: Tree = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 16}
    fetch: Tree = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1}
    for replica in ({}, {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": -1}}):
        yield "Fetch", {**fetch, **replica, "topics": by_name(topics, part, "topic")}, (4, 7, 12)
        yield "Fetch", {**fetch, **replica, "topics": by_id(existing, part)}, (13, 15, 17)
    resources = [(CONFIG_TOPIC, name, ["retention.ms"]) for name in topics]
    resources += [(CONFIG_GROUP, name, ["consumer.session.timeout.ms"]) for name in names.groups()]
    resources += [(CONFIG_BROKER, name, ["num.partitions"]) for name in ("1", "")]
    resources += [(CONFIG_LOGGER, "1", ["none"])]
    asked = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
    ]
    yield "DescribeConfigs", {"resources": asked}, (1, 4)


def group_reads(names: Names) -> Iterator[Question]:
    """Yield requests that read groups, their offsets and transactions."""
    groups, ids, topics = names.groups(), names.transactional_ids(), names.topics()
    yield "DescribeGroups", {"groups": groups, "include_authorized_operations": True}, (0, 3, 5, 6)
    yield "ListGroups", {}, (0, 3, 5)
    for group in groups:
        yield "OffsetFetch", {"group_id": group, "topics": by_name(topics, 0, parts="partition_indexes")}, (1, 2, 7)
        yield "OffsetFetch", {"group_id": group, "topics": None}, (2, 7)
    named = [{"group_id": group, "topics": by_name(topics, 0, parts="partition_indexes")} for group in groups]
    yield "OffsetFetch", {"groups": named}, (8, 9)
    yield "OffsetFetch", {"groups": [{"group_id": group, "topics": None} for group in groups]}, (8, 9)
    of_ids = by_id(names.existing("t"), 0, "partition_indexes")
    yield "OffsetFetch", {"groups": [{"group_id": group, "topics": of_ids} for group in groups]}, (10,)
    for kind, keys in ((GROUP_KEY, groups), (TRANSACTION_KEY, ids)):
        for key in keys:
            yield "FindCoordinator", {"key": key, "key_type": kind}, (0, 1, 3) if kind == GROUP_KEY else (1, 3)
        yield "FindCoordinator", {"key_type": kind, "coordinator_keys": keys}, (4, 6)
    yield "DescribeTransactions", {"transactional_ids": ids}, (0,)
    yield "ListTransactions", {"duration_filter": -1}, (0, 2)


def cluster_reads(names: Names) -> Iterator[Question]:
    """Yield requests that read the state of the cluster."""
    topics = names.topics()
    yield "ApiVersions", {"client_software_name": "matrix", "client_software_version": "1"}, (0, 3)
    yield "DescribeCluster", {"include_cluster_authorized_operations": True}, (0, 1)
    yield "DescribeCluster", {"include_cluster_authorized_operations": False}, (0,)
    yield "DescribeLogDirs", {"topics": [{"topic": name, "partitions": [0]} for name in topics]}, (1, 2, 4)
    yield "DescribeQuorum", {"topics": [{"topic_name": topics[0], "partitions": [{"partition_index": 0}]}]}, (0, 2)
    listed = [{"name": name, "partition_indexes": [0]} for name in topics]
    yield "ListPartitionReassignments", {"timeout_ms": 1000, "topics": listed}, (0,)
    of_topics: Tree = {"resource_type_filter": 2, "resource_name_filter": topics[0], "pattern_type_filter": 2}
    yield "DescribeAcls", {**of_topics, "operation": 1, "permission_type": 1}, (1, 3)
    quotas: Tree = {"components": [{"entity_type": "user", "match_type": 0, "match": topics[0]}], "strict": False}
    yield "DescribeClientQuotas", quotas, (0, 1)
    yield "DescribeUserScramCredentials", {"users": [{"name": topics[0]}]}, (0,)
    yield "ListConfigResources", {"resource_types": [4]}, (1,)


def writes(names: Names) -> Iterator[Question]:
    """Yield requests that write records, with and without a transactional id."""
    existing = names.existing("t")
    whole: Tree = {"acks": -1, "timeout_ms": 5000}
    for transactional_id in (None, *names.transactional_ids()):
        head: Tree = {**whole, "transactional_id": transactional_id}
        data: Tree = {"index": 0, "records": batch_of(names, transactional_id)}
        yield "Produce", {**head, "topic_data": by_name(names.topics(), data, parts="partition_data")}, (3, 9, 12)
        yield "Produce", {**head, "topic_data": by_id(existing, data, "partition_data")}, (13,)
    deleted: Tree = {"partition_index": 0, "offset": 0}
    yield "DeleteRecords", {"topics": by_name(names.topics(), deleted), "timeout_ms": 5000}, (0, 2)


def batch_of(names: Names, transactional_id: str | None) -> BatchSpec:
    """Return a batch, in the open transaction of an existing id, or of a producer that no broker knows."""
    if transactional_id is None:
        return BatchSpec(records(1))
    is_known = transactional_id in names.existing("x")
    producer = Ref(f"p-{transactional_id}") if is_known else ANY_PRODUCER
    epoch = Ref(f"p-{transactional_id}-epoch") if is_known else 0
    return BatchSpec(records(1), producer_id=producer, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL)


def group_writes(names: Names) -> Iterator[Question]:
    """Yield requests of group members, and of consumers without a group."""
    topics = names.topics()
    part: Tree = {"partition_index": 0, "committed_offset": 2, "committed_leader_epoch": -1, "committed_metadata": "m"}
    for group in names.groups():
        head = commit_tree(group, topics[0])
        yield "OffsetCommit", {**head, "topics": by_name(topics, part)}, (2, 6, 9)
        yield "OffsetCommit", {**head, "topics": by_id(names.existing("t"), part)}, (10,)
        yield "Heartbeat", {"group_id": group, "generation_id": 1, "member_id": "m"}, (0, 4)
        yield "SyncGroup", sync_tree(group, 1, "m"), (0, 5)
        yield "LeaveGroup", {"group_id": group, "member_id": "m", "members": [{"member_id": "m"}]}, (0, 5)
        removed = [{"name": name, "partitions": [{"partition_index": 0}]} for name in topics]
        yield "OffsetDelete", {"group_id": group, "topics": removed}, (0,)


def consumer_groups(names: Names) -> Iterator[Question]:
    """Yield requests about consumer groups (KIP-848). A member of the group "k" has the topic "t"."""
    topics, groups = names.topics(), names.existing("k")
    described = [*groups, *names.groups()]
    yield "ConsumerGroupDescribe", {"group_ids": described, "include_authorized_operations": True}, (0, 1)
    for group in groups:
        yield "ConsumerGroupHeartbeat", consumer_tree(group, "unknown", 5), (0, 1)
    for kind, subscribed in zip("lmq", (topics[2:3], topics[:2], topics), strict=True):
        for group in names.existing(kind):
            yield "ConsumerGroupHeartbeat", consumer_tree(group, "c", 0, subscribed), (1,)
            yield "ConsumerGroupHeartbeat", consumer_tree(group, "c", FINAL), (1,)


def share_groups(names: Names) -> Iterator[Question]:
    """Yield requests about share groups (KIP-932). A member of the group "s" has the topic "t"."""
    topics, existing, groups = names.topics(), names.existing("t"), names.existing("s")
    described = [*groups, *names.groups()]
    yield "ShareGroupDescribe", {"group_ids": described, "include_authorized_operations": True}, (1,)
    for group in groups:
        yield "ShareGroupHeartbeat", heartbeat_tree(group, "unknown", 5), (1,)
        of_topics = [{"topic_name": name, "partitions": [0]} for name in topics]
        yield "DescribeShareGroupOffsets", {"groups": [{"group_id": group, "topics": of_topics}]}, (0, 1)
        yield "DescribeShareGroupOffsets", describe_tree(group, None), (1,)
        yield "AlterShareGroupOffsets", alter_tree(group, topics[0]), (0,)
        yield "DeleteShareGroupOffsets", {"group_id": group, "topics": [{"topic_name": topics[0]}]}, (0,)
        opened = {
            **share_fetch_tree(group, None, 0, member="unknown"),
            "topics": by_id(existing, {"partition_index": 0}),
        }
        yield "ShareFetch", opened, (1,)
        acked = {"partition_index": 0, "acknowledgement_batches": [ack(0, 0, 1)]}
        closed = {**ack_tree(group, topics[0], FINAL, member="unknown"), "topics": by_id(existing, acked)}
        yield "ShareAcknowledge", closed, (2,)
    for group in names.existing("o"):
        yield "ShareGroupHeartbeat", heartbeat_tree(group, MEMBER, 0, topics[2:3]), (1,)
        yield "ShareGroupHeartbeat", heartbeat_tree(group, MEMBER, 0, topics[2:]), (1,)
        yield "ShareGroupHeartbeat", heartbeat_tree(group, MEMBER, FINAL), (1,)
        altered = [alter_tree(group, name)["topics"][0] for name in topics]
        yield "AlterShareGroupOffsets", {"group_id": group, "topics": altered}, (0,)
        removed = [{"topic_name": name} for name in topics]
        yield "DeleteShareGroupOffsets", {"group_id": group, "topics": removed}, (0,)
    part: Tree = {"partition": 0, "leader_epoch": 0}
    for api in ("ReadShareGroupState", "WriteShareGroupState"):
        named = [{"topic_id": topic_id(topics[0]), "partitions": [part]}]
        yield api, {"group_id": f"{names.prefix_a}-nothing", "topics": named}, (0,)


def transaction_writes(names: Names) -> Iterator[Question]:
    """Yield requests of producers. The transactions of existing ids are open, with the producer ids `p-<id>`."""
    topics, missing = names.topics(), names.existing("y")
    yield "InitProducerId", init_tree(None), (0, 4)
    part: Tree = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": None}
    for id_ in names.transactional_ids():
        is_known = id_ not in missing
        producer = Ref(f"p-{id_}") if is_known else ANY_PRODUCER
        epoch = Ref(f"p-{id_}-epoch") if is_known else 0
        owner: Tree = {"transactional_id": id_, "producer_id": producer, "producer_epoch": epoch}
        named = [{"name": name, "partitions": [0]} for name in topics]
        old = {f"v3_and_below_{field}": value for field, value in owner.items()}
        yield "AddPartitionsToTxn", {**old, "v3_and_below_topics": named}, (0, 3)
        yield "AddPartitionsToTxn", {**old, "v3_and_below_topics": named[:1]}, (3,)
        yield "AddPartitionsToTxn", {"transactions": [{**owner, "verify_only": True, "topics": named}]}, (4, 5)
        for group in names.existing("g"):
            yield "AddOffsetsToTxn", {**owner, "group_id": group}, (0, 3)
            commit: Tree = {**owner, "group_id": group, "generation_id": -1, "member_id": ""}
            yield "TxnOffsetCommit", {**commit, "topics": by_name(topics, part)}, (0, 3)
        yield "EndTxn", {**owner, "committed": False}, (0, 3)
        yield "InitProducerId", init_tree(id_), (0, 4)
    marker: Tree = {"producer_id": ANY_PRODUCER, "producer_epoch": 0, "transaction_result": False}
    marked = [{"name": name, "partition_indexes": [0]} for name in topics]
    yield "WriteTxnMarkers", {"markers": [{**marker, "topics": marked, "coordinator_epoch": 0}]}, (1,)


def administration(names: Names) -> Iterator[Question]:
    """Yield administrative requests that change nothing: they are only validated, or name what does not exist."""
    topics = names.topics()
    more = [{"name": name, "count": 2} for name in topics]
    yield "CreatePartitions", {"topics": more, "timeout_ms": 5000, "validate_only": True}, (0, 3)
    resources = [(CONFIG_TOPIC, name, "retention.ms", "1000000") for name in topics]
    resources += [(CONFIG_GROUP, name, "consumer.session.timeout.ms", "45000") for name in names.groups()]
    resources += [(CONFIG_BROKER, "1", "message.max.bytes", "1000000")]
    for api, more_fields, versions in (
        ("AlterConfigs", {}, (0, 2)),
        ("IncrementalAlterConfigs", {"config_operation": 0}, (0, 1)),
    ):
        asked = [
            {"resource_type": kind, "resource_name": name, "configs": [{"name": key, "value": value, **more_fields}]}
            for kind, name, key, value in resources
        ]
        yield api, {"resources": asked, "validate_only": True}, versions
    moved = [{"name": name, "partitions": [{"partition_index": 0, "replicas": None}]} for name in topics]
    yield "AlterPartitionReassignments", {"timeout_ms": 5000, "topics": moved}, (0, 1)
    elected = [{"topic": name, "partitions": [0]} for name in topics]
    yield "ElectLeaders", {"election_type": 0, "topic_partitions": elected, "timeout_ms": 5000}, (0, 1, 2)
    dirs = [{"path": "/nowhere", "topics": [{"name": name, "partitions": [0]} for name in topics]}]
    yield "AlterReplicaLogDirs", {"dirs": dirs}, (1, 2)
    feature: Tree = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    yield "UpdateFeatures", {"timeout_ms": 5000, "feature_updates": [feature], "validate_only": True}, (1, 2)
    entity = [{"entity_type": "user", "entity_name": topics[0]}]
    entry: Tree = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]}
    yield "AlterClientQuotas", {"entries": [entry], "validate_only": True}, (0, 1)
    deletion: Tree = {"name": topics[0], "mechanism": 1}
    yield "AlterUserScramCredentials", {"deletions": [deletion], "upsertions": []}, (0,)


def acl_administration(names: Names) -> Iterator[Question]:
    """Yield the creation and deletion of an ACL that no user has."""
    acl: Tree = {
        "resource_type": int(ResourceType.TOPIC),
        "resource_name": f"{names.prefix_a}-nothing",
        "resource_pattern_type": int(PatternType.LITERAL),
        "principal": "User:absent",
        "host": "*",
        "operation": int(AclOperation.READ),
        "permission_type": int(AclPermission.ALLOW),
    }
    yield "CreateAcls", {"creations": [acl]}, (1, 3)
    found: Tree = {
        "resource_type_filter": int(ResourceType.TOPIC),
        "resource_name_filter": acl["resource_name"],
        "pattern_type_filter": int(PatternType.LITERAL),
        "operation": int(AclOperation.ANY),
        "permission_type": int(AclPermission.ANY),
    }
    yield "DeleteAcls", {"filters": [found]}, (1, 3)


def creations_and_deletions(names: Names) -> Iterator[Question]:
    """Yield requests that create and delete topics and groups, if the user may."""
    created = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": []}
        for name in (*names.existing("w"), names.topics()[0], names.topics()[1])
    ]
    yield "CreateTopics", {"topics": created, "timeout_ms": 30_000, "validate_only": True}, (2, 5, 7)
    yield "CreateTopics", {"topics": created, "timeout_ms": 30_000, "validate_only": False}, (7,)
    automatic = [{"name": name} for name in names.existing("c")]
    yield "Metadata", {"topics": automatic, "allow_auto_topic_creation": True}, (4, 13)
    for group in names.groups():
        yield "JoinGroup", join_tree(group), (5, 9)
    yield "DeleteGroups", {"groups_names": [*names.existing("j"), *names.groups()]}, (0, 2)
    yield "DeleteTopics", {"topic_names": names.existing("n"), "timeout_ms": 30_000}, (1, 5)
    ids = [*(Ref(f"id:{name}") for name in names.existing("i")), UNKNOWN_ID]
    yield "DeleteTopics", {"topics": [{"name": None, "topic_id": each} for each in ids], "timeout_ms": 30_000}, (6,)
    listed = [{"name": name} for name in names.topics()]
    yield "DeleteTopics", {"topics": listed, "timeout_ms": 30_000}, (6,)
