"""Topics and the cluster: creation, deletion, partitions, settings, reassignment, elections, descriptions."""

from __future__ import annotations

from uuid import UUID

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.families.world import init_producer, topic, topic_id
from penstock_differential.values import Tree

STEPS = 8
LIST_OPERATIONS = (2, 3)
"""Operations that append to a list, and subtract from one."""
MAX_NAME_CHARS = 249
BAD_NAMES = ("", ".", "..", "a b", "a/b", "ä", "x" * (MAX_NAME_CHARS + 1), "__consumer_offsets", "__transaction_state")
TOPIC_VALUES: dict[str, tuple[str | None, ...]] = {
    "retention.ms": ("1000", "-1", "-2", "x", "", None, "9223372036854775807", "9223372036854775808", " 5 "),
    "cleanup.policy": ("delete", "compact", "compact,delete", "", "x", None, " delete ", "delete,delete"),
    "max.message.bytes": ("1000", "0", "-1", "1.5", "2147483648"),
    "min.insync.replicas": ("1", "0", "5", "x"),
    "segment.bytes": ("1048576", "14", "1", "-1"),
    "compression.type": ("producer", "gzip", "x", "uncompressed"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
    "unclean.leader.election.enable": ("true", "false", "TRUE", "yes"),
    "min.cleanable.dirty.ratio": ("0.5", "1.5", "-0.1", "x"),
    "unknown.setting": ("1", "", None),
    "retention.bytes": ("-1", "0", "-2", "100"),
    "flush.messages": ("1", "0", "-1"),
    "segment.ms": ("1", "0", "100000"),
    "delete.retention.ms": ("0", "-1", "5"),
    "max.compaction.lag.ms": ("1", "0", "9223372036854775807"),
    "min.compaction.lag.ms": ("0", "-1", "10"),
    "preallocate": ("true", "x"),
    "local.retention.ms": ("-2", "1000", "-1"),
    "remote.storage.enable": ("false", "true"),
    "leader.replication.throttled.replicas": ("*", "", "0:1", "x"),
}


def edge_names(case: Case) -> list[str]:
    """Return names that are invalid, the longest valid one, and two that collide in Kafka's metrics."""
    return [*BAD_NAMES, case.prefix.ljust(MAX_NAME_CHARS, "x"), f"{case.prefix}.a", f"{case.prefix}_a"]


def configs(case: Case, most: int = 2) -> list[Tree]:
    """Return topic settings with edge values."""
    names = case.rng.sample(sorted(TOPIC_VALUES), case.rng.randint(0, most))
    return [{"name": name, "value": case.rng.choice(TOPIC_VALUES[name])} for name in names]


@family("CreateTopics", "Metadata", weight=6)
def creation(case: Case) -> None:
    """CreateTopics with edge values of names, counts, assignments and settings; then the existing topics."""
    for number in range(STEPS):
        version = case.version("CreateTopics")
        name = f"{case.prefix}-{number}" if case.rng.random() < 0.8 else case.rng.choice(edge_names(case))
        one: Tree = {
            "name": name,
            "num_partitions": case.rng.choice([-1, 1, 2, 1, 1, 0, -2]),
            "replication_factor": case.rng.choice([-1, 1, 1, 1, 0, 2, 4, -2]),
            "configs": configs(case),
        }
        if case.rng.random() < 0.2:
            replicas = case.rng.choice([[1], [1, 1], [9], [], [-1], [1, 2]])
            indexes = case.rng.choice([[0], [0, 1], [1], [0, 0], [-1]])
            one["assignments"] = [{"partition_index": index, "broker_ids": replicas} for index in indexes]
            one["num_partitions"] = one["replication_factor"] = case.rng.choice([-1, -1, -1, 1])
        tree = {"topics": [one], "timeout_ms": 30_000, "validate_only": case.rng.random() < 0.3}
        case.ask("CreateTopics", case.mutate("CreateTopics", version, tree, odds=0.2), version)
        case.ask(
            "Metadata", {"topics": [{"name": name}], "allow_auto_topic_creation": False}, case.version("Metadata", 4)
        )


@family("DeleteTopics", "Metadata", weight=3)
def deletion(case: Case) -> None:
    """DeleteTopics by name and by id: twice, unknown, both or neither."""
    name = topic(case)
    other = topic(case, "u")
    for _ in range(4):
        version = case.version("DeleteTopics")
        if version >= 6:
            by_id, unknown = {"name": None, "topic_id": topic_id(name)}, {"name": None, "topic_id": UUID(int=77)}
            entries = [
                {"name": name, "topic_id": UUID(int=0)},
                by_id,
                unknown,
                {"name": other, "topic_id": topic_id(name)},
            ]
            tree: Tree = {"topics": case.rng.sample(entries, case.rng.choice([1, 1, 2])), "timeout_ms": 30_000}
        else:
            names = case.rng.choice([[name], [name, "unknown"], [name, name], [""], [other]])
            tree = {"topic_names": names, "timeout_ms": 30_000}
        case.ask("DeleteTopics", case.mutate("DeleteTopics", version, tree, odds=0.3), version)
        for one in (name, other):
            tree = {"topics": [{"name": one}], "allow_auto_topic_creation": False}
            case.ask("Metadata", tree, case.version("Metadata", 4))


@family("CreatePartitions", "Metadata", weight=3)
def more_partitions(case: Case) -> None:
    """CreatePartitions to more, fewer, the same number; with assignments; only validated."""
    name = topic(case)
    for _ in range(5):
        version = case.version("CreatePartitions")
        one: Tree = {"name": name, "count": case.rng.choice([1, 2, 3, 4, 0, -1]), "assignments": None}
        if case.rng.random() < 0.4:
            one["assignments"] = [{"broker_ids": case.rng.choice([[1], [1, 1], [9], []])}] * case.rng.choice([1, 1, 2])
        tree = {"topics": [one], "timeout_ms": 30_000, "validate_only": case.rng.random() < 0.3}
        case.ask("CreatePartitions", case.mutate("CreatePartitions", version, tree, odds=0.3), version)
        tree = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        case.ask("Metadata", tree, case.version("Metadata", 4))


@family("IncrementalAlterConfigs", "AlterConfigs", "DescribeConfigs", weight=6)
def topic_configs(case: Case) -> None:
    """Topic settings changed one by one and all at once; then described by name."""
    name = topic(case)
    for _ in range(STEPS):
        api = case.rng.choice(["IncrementalAlterConfigs", "IncrementalAlterConfigs", "AlterConfigs"])
        version = case.version(api)
        changes = configs(case)
        if api == "IncrementalAlterConfigs":
            for change in changes:
                operation = change["config_operation"] = case.rng.choice([0, 0, 0, 1, 2, 3, 4])
                if operation in LIST_OPERATIONS and (change["value"] or "") != (change["value"] or "").strip():
                    case.events.add("a word with spaces around it was appended to a list or subtracted")
        resource: Tree = {"resource_type": 2, "resource_name": name, "configs": changes}
        if case.rng.random() < 0.15:
            resource["resource_name"] = case.rng.choice(["unknown", "", "a b"])
        if case.rng.random() < 0.1:
            resource["resource_type"] = case.rng.choice([0, 1, 3, 8, 16, 32, 99])
            resource["configs"] = []
        tree = {"resources": [resource], "validate_only": case.rng.random() < 0.3}
        case.ask(api, case.mutate(api, version, tree, keep={"resource_type"}, odds=0.2), version)
        keys = sorted({change["name"] for change in changes}) or None
        if keys:
            described = {"resource_type": 2, "resource_name": name, "configuration_keys": keys}
            tree = {"resources": [described], "include_synonyms": case.rng.random() < 0.5}
            case.ask("DescribeConfigs", tree)


@family("DescribeConfigs", weight=2)
def described(case: Case) -> None:
    """DescribeConfigs of topics, brokers, groups and of resources that do not exist."""
    name = topic(case)
    for _ in range(6):
        version = case.version("DescribeConfigs")
        type_, resource = case.rng.choice(
            [(2, name), (2, "unknown"), (2, ""), (4, "1"), (4, ""), (4, "9"), (4, "x"), (8, "1"), (16, "m"), (32, "g"),
             (0, name), (3, name), (99, "x"), (32, "")]
        )  # fmt: skip
        keys = case.rng.choice(
            [["retention.ms"], ["log.retention.ms"], ["unknown"], [], ["retention.ms", "retention.ms"]]
        )
        tree = {
            "resources": [{"resource_type": type_, "resource_name": resource, "configuration_keys": keys}],
            "include_synonyms": case.rng.random() < 0.5,
        }
        case.ask(
            "DescribeConfigs",
            case.mutate("DescribeConfigs", version, tree, keep={"configuration_keys"}, odds=0.2),
            version,
        )


@family("IncrementalAlterConfigs", "DescribeConfigs", "ListConfigResources", weight=2, cluster=False)
def group_configs(case: Case) -> None:
    """Settings of groups, and the list of resources that have settings."""
    group = f"{case.prefix}-g"
    for _ in range(5):
        version = case.version("IncrementalAlterConfigs")
        setting = case.rng.choice(["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "unknown"])
        change = {
            "name": setting,
            "config_operation": case.rng.choice([0, 1]),
            "value": case.rng.choice(["45000", "5000", "x", "-1"]),
        }
        tree = {
            "resources": [{"resource_type": 32, "resource_name": case.rng.choice([group, ""]), "configs": [change]}]
        }
        case.ask("IncrementalAlterConfigs", tree, version)
        case.ask("ListConfigResources", {"resource_types": case.rng.choice([[4], [16], [0], [99], [8]])}, 1)


@family("Metadata", "DescribeTopicPartitions", weight=4)
def metadata(case: Case) -> None:
    """Metadata and DescribeTopicPartitions for existing and missing topics, by name and by id."""
    name = topic(case, partitions=3)
    for _ in range(STEPS):
        if case.rng.random() < 0.6:
            version = case.version("Metadata", 1)
            entry: Tree = {"name": case.rng.choice([name, name, "unknown", *edge_names(case)])}
            if version >= 12 and case.rng.random() < 0.4:
                entry = {"name": None, "topic_id": case.rng.choice([topic_id(name), UUID(int=99)])}
            tree = {
                "topics": [entry],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": case.rng.random() < 0.3,
            }
            tree = case.mutate("Metadata", version, tree, keep={"allow_auto_topic_creation", "topics"}, odds=0.4)
            case.ask("Metadata", tree, version)
        else:
            tree = {
                "topics": [{"name": case.rng.choice([name, "unknown", ""])}],
                "response_partition_limit": case.rng.choice([1, 2, 100, 2000]),
                "cursor": case.rng.choice([None, {"topic_name": name, "partition_index": case.rng.choice([0, 1, 5])}]),
            }
            tree = case.mutate("DescribeTopicPartitions", 0, tree, keep={"topics"}, odds=0.4)
            case.ask("DescribeTopicPartitions", tree, 0)


@family("Metadata", weight=1)
def auto_creation(case: Case) -> None:
    """Requests for a topic that does not exist, on brokers that do not create topics automatically."""
    for version in case.rng.sample(range(1, 14), 3):
        name = f"{case.prefix}-{version}"
        tree = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
        case.ask("Metadata", tree, version, retry=False)


@family("AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders", weight=3)
def reassignments(case: Case) -> None:
    """Reassignments to existing and missing brokers, cancelled ones, and elections."""
    name = topic(case, partitions=2, replicas=1)
    for _ in range(6):
        api = case.rng.choice(["AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders"])
        version = case.version(api)
        if api == "AlterPartitionReassignments":
            replicas = case.rng.choice([None, [9], [1, 1], [], [-1], [1]])
            part = {"partition_index": case.rng.choice([0, 0, 1, 7]), "replicas": replicas}
            tree: Tree = {
                "timeout_ms": 10_000,
                "topics": [{"name": case.rng.choice([name, name, "unknown"]), "partitions": [part]}],
            }
            tree["allow_replication_factor_change"] = case.rng.random() < 0.7
        elif api == "ListPartitionReassignments":
            tree = {
                "timeout_ms": 10_000,
                "topics": [{"name": case.rng.choice([name, "unknown"]), "partition_indexes": [0, 7]}],
            }
        else:
            tree = {"election_type": case.rng.choice([0, 1]), "timeout_ms": 10_000}
            tree["topic_partitions"] = [
                {"topic": case.rng.choice([name, "unknown"]), "partitions": case.rng.choice([[0], [0, 7], []])}
            ]
        keep = {"topic_partitions", "topics"} if case.rng.random() < 0.5 else set()
        tree = case.mutate(api, version, tree, keep=keep, odds=0.4)
        if tree.get("topic_partitions", []) is None or (api == "ListPartitionReassignments" and tree["topics"] is None):
            continue
        case.ask(api, tree, version)


@family(
    "DescribeCluster",
    "DescribeQuorum",
    "DescribeLogDirs",
    "AlterReplicaLogDirs",
    "UpdateFeatures",
    "FindCoordinator",
    "ApiVersions",
    weight=4,
)
def cluster_questions(case: Case) -> None:
    """Cluster descriptions, and cluster changes that are rejected."""
    name = topic(case)
    init_producer(case)
    for _ in range(STEPS):
        api = case.rng.choice(
            ["DescribeCluster", "DescribeQuorum", "DescribeLogDirs", "AlterReplicaLogDirs", "UpdateFeatures",
             "FindCoordinator", "ApiVersions"]
        )  # fmt: skip
        version = case.version(api)
        keys = case.rng.choice([[f"{case.prefix}-g"], [""], [f"{case.prefix}-g", f"{case.prefix}-h"], []])
        feature = {"feature": case.rng.choice(["unknown", ""]), "max_version_level": case.rng.choice([0, 1, -1, 99])}
        feature |= {"allow_downgrade": case.rng.random() < 0.5, "upgrade_type": case.rng.choice([0, 1, 2, 3, 4])}
        trees: dict[str, Tree] = {
            "DescribeCluster": {"include_cluster_authorized_operations": case.rng.random() < 0.5, "endpoint_type": 1},
            "DescribeQuorum": {
                "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
            },
            "DescribeLogDirs": {"topics": [{"topic": case.rng.choice([name, "unknown"]), "partitions": [0, 5]}]},
            "AlterReplicaLogDirs": {
                "dirs": [
                    {"path": "/unknown", "topics": [{"name": case.rng.choice([name, "unknown"]), "partitions": [0]}]}
                ]
            },
            "UpdateFeatures": {
                "timeout_ms": 10_000,
                "feature_updates": case.rng.choice([[feature], [feature, feature], []]),
            },
            "FindCoordinator": {
                "key": keys[0] if keys else "",
                "coordinator_keys": keys,
                "key_type": case.rng.choice([0, 0, 1, 2, 3, -1]),
            },
            "ApiVersions": {"client_software_name": "d", "client_software_version": "1"},
        }
        case.ask(api, case.mutate(api, version, trees[api], odds=0.4), version)
