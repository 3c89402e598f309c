"""What each served API requires: Kafka's table of operations, resources and APIs (KIP-11 and later).

`docs/reference/authorization.md` is generated from `TABLE`.
"""

from __future__ import annotations

from typing import Any

from penstock.api.authorization.responses import DENIALS, NO_OPERATIONS
from penstock.api.authorization.rules import (
    NEWEST,
    ApiRules,
    DetailRule,
    ElementRule,
    NestedRule,
    OperationsRule,
    RequestCondition,
    RequestRule,
    Right,
    VisibilityRule,
)
from penstock.api.authorization.subjects import (
    BrokerTopic,
    DeletedTopic,
    MissingTopic,
    NamedResources,
    Settings,
    TopicById,
    TopicsByNameOrId,
)
from penstock.wire.acl import AclOperation, ResourceType
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_describe import DescribedGroup as ConsumerGroup
from penstock.wire.messages.create_topics import CreatableTopicResult
from penstock.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from penstock.wire.messages.describe_topic_partitions import TopicRequest
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from penstock.wire.messages.share_group_describe import DescribedGroup as ShareGroup

READ_TOPIC = Right(AclOperation.READ, ResourceType.TOPIC)
WRITE_TOPIC = Right(AclOperation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC = Right(AclOperation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC = Right(AclOperation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC = Right(AclOperation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC = Right(AclOperation.DESCRIBE, ResourceType.TOPIC)
DESCRIBE_TOPIC_CONFIGS = Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)
WRITE_ANY_TOPIC = Right(AclOperation.WRITE, ResourceType.TOPIC, is_for_any=True)
READ_GROUP = Right(AclOperation.READ, ResourceType.GROUP)
DELETE_GROUP = Right(AclOperation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP = Right(AclOperation.DESCRIBE, ResourceType.GROUP)
WRITE_TXN = Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TXN = Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
CREATE_CLUSTER = Right(AclOperation.CREATE, ResourceType.CLUSTER)
DELETE_CLUSTER = Right(AclOperation.DELETE, ResourceType.CLUSTER)
ALTER_CLUSTER = Right(AclOperation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER = Right(AclOperation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION = Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
CLUSTER_CONFIGS = Right(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
ALTER_CLUSTER_CONFIGS = Right(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
IDEMPOTENT_WRITE = Right(AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)

TRANSACTIONAL = RequestCondition("with a transactional id", lambda request: request.transactional_id is not None)
IDEMPOTENT = RequestCondition("without a transactional id", lambda request: request.transactional_id is None)
NAMES_GROUP = RequestCondition("with a group id", lambda request: request.group_id is not None)
CHECKED_BY_HANDLERS = RequestCondition("for members of share groups", lambda request: False)
OF_GROUP = RequestCondition("for groups", lambda request: request.key_type == 0)
OF_TRANSACTION = RequestCondition("for transactional ids", lambda request: request.key_type == 1)
OF_SHARE_PARTITION = RequestCondition("for share-partitions", lambda request: request.key_type == 2)
CREATES_TOPICS = RequestCondition(
    "if the request and the broker create missing topics", lambda request: request.allow_auto_topic_creation
)


def refused_offsets(requested: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    """Return the OffsetFetch result of a topic with an error for each partition."""
    partitions = [
        OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=error)
        for index in requested.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=requested.name, topic_id=requested.topic_id, partitions=partitions)


def refused_share_offsets(
    requested: DescribeShareGroupOffsetsRequestTopic, error: int
) -> DescribeShareGroupOffsetsResponseTopic:
    """Return the DescribeShareGroupOffsets result of a topic with an error for each partition."""
    partitions = [
        DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=-1, error_code=error, error_message=DENIALS.get(error)
        )
        for index in requested.partitions
    ]
    return DescribeShareGroupOffsetsResponseTopic(topic_name=requested.topic_name, partitions=partitions)


def hide_settings(created: CreatableTopicResult) -> None:
    """Remove the settings from the result of a created topic (KIP-525)."""
    if created.error_code == ErrorCode.NONE:
        created.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        created.num_partitions = created.replication_factor = -1
        created.configs = []


def topics_of_group(group: ConsumerGroup) -> set[str]:
    """Return the topics whose partitions the members of a described group have."""
    assignments = (each for m in group.members for each in (m.assignment, m.target_assignment))
    return {topic.topic_name for assignment in assignments for topic in assignment.topic_partitions}


def topics_of_share_group(group: ShareGroup) -> set[str]:
    """Return the topics whose partitions the members of a described share group have."""
    return {topic.topic_name for member in group.members for topic in member.assignment.topic_partitions}


def hide_group(group: ConsumerGroup | ShareGroup) -> None:
    """Replace a described group by the error for topics that the client may not see; its id remains."""
    group.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    group.error_message = "the group has partitions of a topic that the client may not describe"
    group.group_state = group.assignor_name = ""
    group.group_epoch = group.assignment_epoch = 0
    group.members = []
    group.authorized_operations = NO_OPERATIONS


def cluster(right: Right, *, administrative: bool = False, logged: tuple[str, str] | None = None) -> ApiRules:
    """Return the requirement of one right on the cluster."""
    return ApiRules((RequestRule(rights=(right,)),), is_administrative=administrative, logged=logged)


def member() -> ApiRules:
    """Return the requirement of requests of group members."""
    return ApiRules((RequestRule(rights=(READ_GROUP,), name="group_id"),))


def share_data(note: str = "") -> ApiRules:
    """Return the requirement of requests that get or acknowledge records of share groups.

    Their handlers check the topics, of partitions in sessions too.
    """
    of_topics = ElementRule(
        subject=TopicById(READ_TOPIC), requested="topics", answered="responses", when=CHECKED_BY_HANDLERS
    )
    return ApiRules((RequestRule(rights=(READ_GROUP,), name="group_id", when=NAMES_GROUP), of_topics), note=note)


def share_offsets(right: Right) -> ApiRules:
    """Return the requirement of requests that change offsets of a share group."""
    topic = ElementRule(
        subject=NamedResources(READ_TOPIC, "topic_name"), requested="topics", answered="responses", runs_empty=True
    )
    return ApiRules((RequestRule(rights=(right,), name="group_id"), topic), is_administrative=True)


def topics(right: Right, answered: str = "topics", *, administrative: bool = False, **more: Any) -> ApiRules:
    """Return the requirement of one right on each topic that a request names."""
    rule = ElementRule(subject=NamedResources(right, "name"), requested="topics", answered=answered, **more)
    return ApiRules((rule,), is_administrative=administrative)


def settings(operation: AclOperation, answered: str, *, administrative: bool = False) -> ApiRules:
    """Return the requirement of one operation on each resource with settings."""
    rule = ElementRule(subject=Settings(operation), requested="resources", answered=answered)
    return ApiRules((rule,), is_administrative=administrative)


TABLE: dict[int, ApiRules] = {
    ApiKey.PRODUCE: ApiRules(
        (
            RequestRule(rights=(WRITE_TXN,), name="transactional_id", when=TRANSACTIONAL),
            ElementRule(subject=TopicsByNameOrId(WRITE_TOPIC), requested="topic_data", answered="responses"),
        ),
        note="Checked when a request arrives, and again if it waited. A transactional id requires the right also if no"
        " batch is transactional, unlike in Kafka. CLUSTER_ACTION also permits topics with"
        " `errors.deadletterqueue.group.enable=true`, where brokers write dead letters, and topics whose number of"
        " partitions decreases, where they relay records of surplus partitions.",
    ),
    ApiKey.FETCH: ApiRules(
        (
            ElementRule(
                subject=TopicsByNameOrId(READ_TOPIC, "topic"),
                requested="topics",
                answered="responses",
                when=RequestCondition("for consumers", lambda request: True),
            ),
            RequestRule(rights=(CLUSTER_ACTION,), when=RequestCondition("for followers", lambda request: True)),
        ),
        note="Checked at each read of a partition, also in sessions and after a wait. A client that claims to be a"
        " follower gets TOPIC_AUTHORIZATION_FAILED for each partition.",
    ),
    ApiKey.LIST_OFFSETS: topics(DESCRIBE_TOPIC),
    ApiKey.METADATA: ApiRules(
        (
            ElementRule(
                subject=TopicsByNameOrId(DESCRIBE_TOPIC),
                requested="topics",
                answered="topics",
                runs_empty=True,
            ),
            ElementRule(
                subject=MissingTopic(),
                requested="topics",
                answered="topics",
                instead=CREATE_CLUSTER,
                runs_empty=True,
                when=CREATES_TOPICS,
            ),
            VisibilityRule(right=DESCRIBE_TOPIC, path=("topics",), name="name"),
            OperationsRule(
                resource=ResourceType.TOPIC, answered="topics", name="name", bits="topic_authorized_operations"
            ),
            OperationsRule(resource=ResourceType.CLUSTER, bits="cluster_authorized_operations"),
        )
    ),
    ApiKey.OFFSET_COMMIT: ApiRules(
        (
            RequestRule(rights=(READ_GROUP,), name="group_id"),
            ElementRule(subject=TopicsByNameOrId(READ_TOPIC), requested="topics", answered="topics"),
        )
    ),
    ApiKey.OFFSET_FETCH: ApiRules(
        (
            RequestRule(rights=(DESCRIBE_GROUP,), name="group_id", last=7),
            ElementRule(subject=NamedResources(DESCRIBE_TOPIC, "name"), requested="topics", answered="topics", last=7),
            VisibilityRule(right=DESCRIBE_TOPIC, path=("topics",), name="name", last=7),
            ElementRule(
                subject=NamedResources(DESCRIBE_GROUP, "group_id"), requested="groups", answered="groups", first=8
            ),
            NestedRule(
                subject=TopicsByNameOrId(DESCRIBE_TOPIC),
                outer="groups",
                requested="topics",
                refuse=refused_offsets,
                first=8,
            ),
            VisibilityRule(right=DESCRIBE_TOPIC, path=("groups", "topics"), name="name", first=8),
        )
    ),
    ApiKey.FIND_COORDINATOR: ApiRules(
        (
            RequestRule(rights=(DESCRIBE_GROUP,), name="key", last=3, when=OF_GROUP),
            RequestRule(rights=(DESCRIBE_TXN,), name="key", last=3, when=OF_TRANSACTION),
            RequestRule(rights=(CLUSTER_ACTION,), when=OF_SHARE_PARTITION),
            ElementRule(
                subject=NamedResources(DESCRIBE_GROUP),
                requested="coordinator_keys",
                answered="coordinators",
                first=4,
                when=OF_GROUP,
            ),
            ElementRule(
                subject=NamedResources(DESCRIBE_TXN),
                requested="coordinator_keys",
                answered="coordinators",
                first=4,
                when=OF_TRANSACTION,
            ),
        )
    ),
    ApiKey.JOIN_GROUP: member(),
    ApiKey.HEARTBEAT: member(),
    ApiKey.LEAVE_GROUP: member(),
    ApiKey.SYNC_GROUP: member(),
    ApiKey.DESCRIBE_GROUPS: ApiRules(
        (
            ElementRule(subject=NamedResources(DESCRIBE_GROUP), requested="groups", answered="groups"),
            OperationsRule(
                resource=ResourceType.GROUP, answered="groups", name="group_id", bits="authorized_operations"
            ),
        )
    ),
    ApiKey.LIST_GROUPS: ApiRules(
        (VisibilityRule(right=DESCRIBE_GROUP, path=("groups",), name="group_id", instead=DESCRIBE_CLUSTER),)
    ),
    ApiKey.SASL_HANDSHAKE: ApiRules(note="Allowed: it precedes authentication."),
    ApiKey.API_VERSIONS: ApiRules(note="Allowed to everyone, also before authentication."),
    ApiKey.SASL_AUTHENTICATE: ApiRules(note="Allowed: it is the authentication."),
    ApiKey.CREATE_TOPICS: ApiRules(
        (
            ElementRule(
                subject=NamedResources(CREATE_TOPIC, "name"),
                requested="topics",
                answered="topics",
                instead=CREATE_CLUSTER,
            ),
            DetailRule(
                right=DESCRIBE_TOPIC_CONFIGS,
                answered="topics",
                names=lambda created: [created.name],
                hide=hide_settings,
                text="to see the settings of the created topic",
            ),
        ),
        is_administrative=True,
    ),
    ApiKey.DELETE_TOPICS: ApiRules(
        (
            *(
                ElementRule(
                    subject=DeletedTopic(right, field),
                    requested=requested,
                    answered="responses",
                    instead=DELETE_CLUSTER,
                    first=first,
                    last=last,
                )
                for requested, field, first, last in (("topic_names", "", 0, 5), ("topics", "name", 6, NEWEST))
                for right in (DESCRIBE_TOPIC, DELETE_TOPIC)
            ),
        ),
        is_administrative=True,
    ),
    ApiKey.DELETE_RECORDS: topics(DELETE_TOPIC, administrative=True),
    ApiKey.INIT_PRODUCER_ID: ApiRules(
        (
            RequestRule(rights=(WRITE_TXN,), name="transactional_id", when=TRANSACTIONAL),
            RequestRule(rights=(WRITE_ANY_TOPIC, IDEMPOTENT_WRITE), when=IDEMPOTENT),
        )
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRules(
        (
            ElementRule(
                subject=BrokerTopic(DESCRIBE_TOPIC), requested="topics", answered="topics", instead=CLUSTER_ACTION
            ),
        )
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiRules(
        (
            RequestRule(rights=(WRITE_TXN,), name="v3_and_below_transactional_id", last=3),
            ElementRule(
                subject=NamedResources(WRITE_TOPIC, "name"),
                requested="v3_and_below_topics",
                answered="results_by_topic_v3_and_below",
                is_atomic=True,
                last=3,
            ),
            RequestRule(rights=(CLUSTER_ACTION,), first=4),
        )
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiRules(
        (
            RequestRule(rights=(WRITE_TXN,), name="transactional_id"),
            RequestRule(rights=(READ_GROUP,), name="group_id"),
        )
    ),
    ApiKey.END_TXN: ApiRules((RequestRule(rights=(WRITE_TXN,), name="transactional_id"),)),
    ApiKey.WRITE_TXN_MARKERS: ApiRules((RequestRule(rights=(ALTER_CLUSTER, CLUSTER_ACTION)),)),
    ApiKey.TXN_OFFSET_COMMIT: ApiRules(
        (
            RequestRule(rights=(WRITE_TXN,), name="transactional_id"),
            RequestRule(rights=(READ_GROUP,), name="group_id"),
            ElementRule(subject=NamedResources(READ_TOPIC, "name"), requested="topics", answered="topics"),
        )
    ),
    ApiKey.DESCRIBE_ACLS: cluster(DESCRIBE_CLUSTER),
    ApiKey.CREATE_ACLS: cluster(ALTER_CLUSTER, administrative=True, logged=("creations", "resource_name")),
    ApiKey.DELETE_ACLS: cluster(ALTER_CLUSTER, administrative=True, logged=("filters", "resource_name_filter")),
    ApiKey.DESCRIBE_CONFIGS: settings(AclOperation.DESCRIBE_CONFIGS, "results"),
    ApiKey.ALTER_CONFIGS: settings(AclOperation.ALTER_CONFIGS, "responses", administrative=True),
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster(ALTER_CLUSTER, administrative=True, logged=("dirs", "path")),
    ApiKey.DESCRIBE_LOG_DIRS: cluster(DESCRIBE_CLUSTER),
    ApiKey.CREATE_PARTITIONS: topics(ALTER_TOPIC, "results", administrative=True),
    ApiKey.DELETE_GROUPS: ApiRules(
        (ElementRule(subject=NamedResources(DELETE_GROUP), requested="groups_names", answered="results"),),
        is_administrative=True,
    ),
    ApiKey.ELECT_LEADERS: cluster(ALTER_CLUSTER, administrative=True, logged=("topic_partitions", "topic")),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: settings(AclOperation.ALTER_CONFIGS, "responses", administrative=True),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster(ALTER_CLUSTER, administrative=True, logged=("topics", "name")),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster(DESCRIBE_CLUSTER),
    ApiKey.OFFSET_DELETE: ApiRules(
        (
            RequestRule(rights=(DELETE_GROUP,), name="group_id"),
            ElementRule(
                subject=NamedResources(READ_TOPIC, "name"), requested="topics", answered="topics", runs_empty=True
            ),
        ),
        is_administrative=True,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster(CLUSTER_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: cluster(ALTER_CLUSTER_CONFIGS, administrative=True),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster(DESCRIBE_CLUSTER),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster(ALTER_CLUSTER, administrative=True, logged=("upsertions", "name")),
    ApiKey.DESCRIBE_QUORUM: cluster(DESCRIBE_CLUSTER),
    ApiKey.UPDATE_FEATURES: cluster(ALTER_CLUSTER, administrative=True, logged=("feature_updates", "feature")),
    ApiKey.DESCRIBE_CLUSTER: ApiRules(
        (OperationsRule(resource=ResourceType.CLUSTER, bits="cluster_authorized_operations"),),
        note="Allowed to everyone.",
    ),
    ApiKey.DESCRIBE_PRODUCERS: topics(READ_TOPIC),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiRules(
        (
            ElementRule(
                subject=NamedResources(DESCRIBE_TXN), requested="transactional_ids", answered="transaction_states"
            ),
            VisibilityRule(right=DESCRIBE_TOPIC, path=("transaction_states", "topics"), name="topic"),
        )
    ),
    ApiKey.LIST_TRANSACTIONS: ApiRules(
        (VisibilityRule(right=DESCRIBE_TXN, path=("transaction_states",), name="transactional_id"),)
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiRules(
        (
            RequestRule(rights=(READ_GROUP,), name="group_id"),
            ElementRule(
                subject=NamedResources(DESCRIBE_TOPIC), requested="subscribed_topic_names", refuses_request=True
            ),
        ),
        note="A regular expression selects among the topics that the client may describe.",
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiRules(
        (
            ElementRule(subject=NamedResources(DESCRIBE_GROUP), requested="group_ids", answered="groups"),
            DetailRule(
                right=DESCRIBE_TOPIC,
                answered="groups",
                names=topics_of_group,
                hide=hide_group,
                text="on all topics that are assigned to members; otherwise the group gets an error",
            ),
            OperationsRule(
                resource=ResourceType.GROUP, answered="groups", name="group_id", bits="authorized_operations"
            ),
        )
    ),
    ApiKey.SHARE_GROUP_HEARTBEAT: ApiRules(
        (
            RequestRule(rights=(READ_GROUP,), name="group_id"),
            ElementRule(
                subject=NamedResources(DESCRIBE_TOPIC), requested="subscribed_topic_names", refuses_request=True
            ),
        )
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: ApiRules(
        (
            ElementRule(subject=NamedResources(DESCRIBE_GROUP), requested="group_ids", answered="groups"),
            DetailRule(
                right=DESCRIBE_TOPIC,
                answered="groups",
                names=topics_of_share_group,
                hide=hide_group,
                text="on all topics that are assigned to members; otherwise the group gets an error",
            ),
            OperationsRule(
                resource=ResourceType.GROUP, answered="groups", name="group_id", bits="authorized_operations"
            ),
        )
    ),
    ApiKey.SHARE_FETCH: share_data("READ on a topic is checked at each read of a partition, also after a wait."),
    ApiKey.SHARE_ACKNOWLEDGE: share_data(),
    ApiKey.READ_SHARE_GROUP_STATE: cluster(CLUSTER_ACTION),
    ApiKey.WRITE_SHARE_GROUP_STATE: cluster(CLUSTER_ACTION),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ApiRules(
        (
            ElementRule(subject=NamedResources(DESCRIBE_GROUP, "group_id"), requested="groups", answered="groups"),
            NestedRule(
                subject=NamedResources(DESCRIBE_TOPIC, "topic_name"),
                outer="groups",
                requested="topics",
                refuse=refused_share_offsets,
            ),
            VisibilityRule(right=DESCRIBE_TOPIC, path=("groups", "topics"), name="topic_name"),
        )
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: share_offsets(READ_GROUP),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: share_offsets(DELETE_GROUP),
    ApiKey.LIST_CONFIG_RESOURCES: cluster(CLUSTER_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiRules(
        (
            ElementRule(
                subject=NamedResources(DESCRIBE_TOPIC, "name"),
                requested="topics",
                answered="topics",
                all_of=TopicRequest,
            ),
            OperationsRule(
                resource=ResourceType.TOPIC, answered="topics", name="name", bits="topic_authorized_operations"
            ),
        )
    ),
}
