"""The `ConsumerGroup` resource: state and lag of a group, starting offsets, offset resets, replays."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from penstock_operator.model.common import (
    AGE,
    MAX_TOPIC_NAME,
    ClusterRef,
    Condition,
    DeletionPolicy,
    KindInfo,
    Model,
    ObjectMeta,
    condition_column,
    keyed_by,
    message_column,
    topic_name_rule,
)
from penstock_operator.model.fields import PrinterColumn, Rule, doc, unchanged
from penstock_operator.model.replay import DeadLetterReplay, ReplayStatus, parse_timestamp_ms, timestamp_rule
from penstock_operator.model.settings import CONFIG_VALUE, MAX_SETTINGS, group_rules

MAX_GROUP_ID = 1024
MAX_TOPICS = 100
MAX_PARTITIONS = 1000
TopicName = Annotated[str, doc("Topic name.", topic_name_rule("a topic name"), min_length=1, max_length=MAX_TOPIC_NAME)]


class OffsetReset(Model, frozen=True, kw_only=True):
    """An offset reset, done once per `id`. Schema rules enforce exactly one target."""

    rules = (
        Rule(
            "(self.to == 'timestamp') == has(self.timestamp)",
            "timestamp requires `to: timestamp`, and the reverse: set both or neither",
        ),
        Rule(
            "(self.to == 'offset') == has(self.offset)",
            "offset requires `to: offset`, and the reverse: set both or neither",
        ),
        Rule(
            "!has(self.partitions) || size(self.partitions) == 0 || (has(self.topics) && size(self.topics) == 1)",
            "partitions requires exactly one topic in topics",
        ),
        Rule(
            "self.id != oldSelf.id || (self.to == oldSelf.to && "
            + unchanged("timestamp", "offset", "topics", "partitions")
            + ")",
            "a reset is done once per id: set a new id for the changed reset",
        ),
    )

    id: Annotated[
        str,
        doc(
            "Name of this reset, such as a date. The operator does a reset once per id, however often the manifest is"
            " applied.",
            min_length=1,
            max_length=100,
        ),
    ]
    to: Annotated[Literal["earliest", "latest", "timestamp", "offset"], doc("Target of the reset.")]
    timestamp: (
        Annotated[
            str,
            doc(
                "For `to: timestamp`: a time in RFC 3339. The group is set to the first record at or after it.",
                timestamp_rule("timestamp"),
                max_length=35,
            ),
        ]
        | None
    ) = None
    offset: (
        Annotated[
            int,
            doc(
                "For `to: offset`: the offset, clamped to the log start offset and the log end offset of a partition.",
                Rule("self >= 0", "offset must be 0 or more; use earliest or latest for the start or end of the log"),
                ge=0,
            ),
        ]
        | None
    ) = None
    topics: Annotated[
        tuple[TopicName, ...],
        doc(
            "Topics to reset. Default: all topics for which the group has committed offsets.",
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_TOPICS,
        ),
    ] = ()
    partitions: Annotated[
        tuple[Annotated[int, doc("Partition number.", ge=0)], ...],
        doc(
            "Partitions of the topic to reset. Default: all.",
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_PARTITIONS,
        ),
    ] = ()
    dry_run: Annotated[bool, doc("If true, the operator writes the plan to the status and does not reset.")] = False

    @property
    def timestamp_ms(self) -> int | None:
        """`timestamp` in ms since the epoch. Raises `ValueError` if it is not an RFC 3339 time."""
        return None if self.timestamp is None else parse_timestamp_ms(self.timestamp)


class StartingOffsets(Model, frozen=True, kw_only=True):
    """Offsets that the operator commits for a group without committed offsets."""

    topics: Annotated[
        tuple[TopicName, ...],
        doc(
            "Topics whose offsets are set.",
            schema={"x-kubernetes-list-type": "set"},
            min_length=1,
            max_length=MAX_TOPICS,
        ),
    ]
    at: Annotated[Literal["earliest", "latest"], doc("Where the group starts.")] = "earliest"


class ConsumerGroupSpec(Model, frozen=True, kw_only=True):
    """Desired state of a `ConsumerGroup`."""

    cluster_ref: Annotated[ClusterRef, doc("Cluster of the group. Immutable.")]
    group_id: (
        Annotated[
            str,
            doc(
                "Group id. Default: the name of the object. Immutable. Needed for ids that are not valid Kubernetes"
                " names.",
                min_length=1,
                max_length=MAX_GROUP_ID,
            ),
        ]
        | None
    ) = None
    type: (
        Annotated[
            Literal["classic", "consumer", "share"],
            doc(
                "Type of the group: the classic protocol, the consumer protocol (KIP-848) or a share group (KIP-932)."
                " Default: the type of the existing group. Ready is False if the group has another type. Needed to set"
                " offsets of a share group before it exists."
            ),
        ]
        | None
    ) = None
    config: Annotated[
        dict[str, str],
        doc(
            "Settings of the group, by Kafka name. A setting that is removed here is reset to its default; settings"
            ' that were never listed stay as they are. Quote booleans and fractions ("true", "0.5").',
            *group_rules(),
            schema=CONFIG_VALUE,
            max_length=MAX_SETTINGS,
        ),
    ] = {}
    reset: (
        Annotated[
            OffsetReset,
            doc(
                "Resets the group's committed offsets, or the start offsets of a share group, once per `id`, when the"
                " group has no members. The status shows the plan. The operator does not retry a failed reset: set"
                " another `id`."
            ),
        ]
        | None
    ) = None
    replay_dead_letters: (
        Annotated[
            DeadLetterReplay,
            doc(
                "Sends the records of this group's dead letters to their topics again, once per `id`, up to the letters"
                " that exist at the start. Each letter is replayed once, by whichever replay selects it first."
            ),
        ]
        | None
    ) = None
    starting_offsets: (
        Annotated[StartingOffsets, doc("Offsets to commit if the group has no committed offsets.")] | None
    ) = None
    deletion_policy: Annotated[
        DeletionPolicy,
        doc("Whether to delete the group when this object is deleted. Retain keeps its committed offsets."),
    ] = "Retain"
    paused: Annotated[
        bool,
        doc(
            "If true, the operator updates the status but changes nothing else. If the object is deleted while it is"
            " paused, the group is kept."
        ),
    ] = False

    @property
    def lasting_policy(self) -> DeletionPolicy:
        """The deletion policy in effect: a paused object retains its group."""
        return "Retain" if self.paused else self.deletion_policy


class TopicLag(Model, frozen=True, kw_only=True):
    """Lag of a group in one topic."""

    topic: Annotated[str, doc("Topic name.")]
    partitions: Annotated[int, doc("Number of partitions for which the group has committed offsets.")]
    lag: Annotated[int, doc("Number of records not yet consumed.")]
    lag_seconds: Annotated[int, doc("Age of the oldest record not yet consumed, if known.")] | None = None


class ResetStatus(Model, frozen=True, kw_only=True):
    """Plan or result of the newest reset."""

    id: Annotated[str, doc("Id of the reset.")]
    phase: Annotated[Literal["Planned", "Done", "Refused", "Failed"], doc("Phase of the reset.")]
    message: Annotated[str, doc("Human-readable details.")] = ""
    changes: Annotated[tuple[str, ...], doc("The first 100 changes, as `topic-partition: from → to`.")] = ()
    total_changes: Annotated[int, doc("Total number of changes.")] = 0


class GroupDeadLetters(Model, frozen=True, kw_only=True):
    """Dead letters of a share group."""

    topic: Annotated[str, doc("Topic of the dead letters.")]
    depth: Annotated[int, doc("Number of records in the topic.")]
    oldest: Annotated[str, doc("Time of the oldest record in the topic, in RFC 3339.")] | None = None


class ConsumerGroupStatus(Model, frozen=True, kw_only=True):
    """Observed state of a `ConsumerGroup`."""

    observed_generation: Annotated[int, doc("Generation of the object that the operator last reconciled.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: the object is reconciled, whether or not the group exists. Healthy: the group consumes or has"
            " caught up.",
            schema=keyed_by("type"),
        ),
    ] = ()
    group_id: Annotated[str, doc("Group id.")] | None = None
    type: Annotated[str, doc("Type of the group: classic, consumer or share.")] | None = None
    state: Annotated[str, doc("Group state as in the Kafka protocol, or Absent.")] | None = None
    members: Annotated[int, doc("Number of members.")] | None = None
    lag: (
        Annotated[
            int,
            doc(
                "Number of records not yet consumed, in all topics. Of a share group: records that are not done,"
                " whether available or in flight."
            ),
        ]
        | None
    ) = None
    lag_seconds: Annotated[int, doc("Age of the oldest record not yet consumed, if known.")] | None = None
    topics: Annotated[tuple[TopicLag, ...], doc("Lag by topic.", schema=keyed_by("topic"))] = ()
    topic_names: Annotated[str, doc("Comma-separated topic names, for the printer column.")] | None = None
    reset: Annotated[ResetStatus, doc("Plan or result of the newest reset.")] | None = None
    replay: Annotated[ReplayStatus, doc("Progress or result of the newest replay of dead letters.")] | None = None
    configured: Annotated[tuple[str, ...], doc("Names of the settings that this object has set.")] = ()
    dead_letters: (
        Annotated[
            GroupDeadLetters,
            doc("Dead letters, if the group has `errors.deadletterqueue.topic.name` and the topic exists."),
        ]
        | None
    ) = None


class ConsumerGroup(Model, frozen=True, kw_only=True):
    """A consumer group of a `Cluster`."""

    kind_info: ClassVar[KindInfo] = KindInfo(
        kind="ConsumerGroup",
        short="pcg",
        description="A consumer group or share group of a Cluster: its state, lag, settings and dead letters,"
        " resets of its offsets and replays of its dead letters."
        " The operator creates objects for the groups that it discovers.",
        columns=(
            PrinterColumn("Cluster", ".spec.clusterRef.name"),
            PrinterColumn("Type", ".status.type"),
            PrinterColumn("State", ".status.state"),
            PrinterColumn("Members", ".status.members", "integer"),
            PrinterColumn("Lag", ".status.lag", "integer"),
            PrinterColumn("Lag-Seconds", ".status.lagSeconds", "integer"),
            PrinterColumn("Dead-Letters", ".status.deadLetters.depth", "integer", priority=1),
            PrinterColumn("Topics", ".status.topicNames"),
            AGE,
            PrinterColumn("Group", ".status.groupId", priority=1),
            condition_column("Ready", priority=1),
            PrinterColumn("Dead-Letter-Topic", ".status.deadLetters.topic", priority=1),
            PrinterColumn("Oldest-Letter", ".status.deadLetters.oldest", "date", priority=1),
            PrinterColumn("Reset", ".status.reset.phase", priority=1),
            PrinterColumn("Replay", ".status.replay.phase", priority=1),
            message_column(),
        ),
    )
    rules = (
        Rule(
            "(has(self.spec.groupId) ? self.spec.groupId : self.metadata.name) =="
            " (has(oldSelf.spec.groupId) ? oldSelf.spec.groupId : oldSelf.metadata.name)",
            "groupId cannot be changed: create another ConsumerGroup, and delete this one",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[ConsumerGroupSpec, doc("Desired state of the group.")]
    status: Annotated[ConsumerGroupStatus, doc("State of the group as the brokers report it.")] = ConsumerGroupStatus()

    @property
    def group_id(self) -> str:
        """Group id: `spec.groupId`, or the name of the object."""
        return self.spec.group_id or self.metadata.name
