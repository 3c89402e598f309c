"""`ConsumerGroup`: a group of a cluster, shown, and reset once where that is asked for."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from penstock_operator.model.common import (
    AGE,
    MAX_TOPIC_NAME,
    ClusterRef,
    Condition,
    DeletionPolicy,
    Model,
    NamedReference,
    ObjectMeta,
    condition_column,
    keyed_by,
    message_column,
    topic_name_rule,
)
from penstock_operator.model.fields import PrinterColumn, Rule, doc, unchanged

MAX_GROUP_ID = 1024
MAX_TOPICS = 100
MAX_PARTITIONS = 1000
TIMESTAMP = (
    "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    "T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)

TopicName = Annotated[str, doc("A topic.", topic_name_rule("a topic's name"), min_length=1, max_length=MAX_TOPIC_NAME)]


class OffsetReset(Model, frozen=True, kw_only=True):
    """Done once for each `id`. Exactly one target; the schema holds that."""

    rules = (
        Rule(
            "(self.to == 'timestamp') == has(self.timestamp)",
            "timestamp goes with `to: timestamp`, and only with it: give both or neither",
        ),
        Rule(
            "(self.to == 'offset') == has(self.offset)",
            "offset goes with `to: offset`, and only with it: give both or neither",
        ),
        Rule(
            "!has(self.partitions) || size(self.partitions) == 0 || (has(self.topics) && size(self.topics) == 1)",
            "partitions are those of one topic: name exactly one in topics",
        ),
        Rule(
            "self.id != oldSelf.id || (self.to == oldSelf.to && "
            + unchanged("timestamp", "offset", "topics", "partitions")
            + ")",
            "a reset is done once for each id: give the changed one a new id",
        ),
    )

    id: Annotated[
        str,
        doc(
            "A name for this reset, such as a date: it is done once, however often the manifest is applied.",
            min_length=1,
            max_length=100,
        ),
    ]
    to: Annotated[Literal["earliest", "latest", "timestamp", "offset"], doc("Where the group is set.")]
    timestamp: (
        Annotated[
            str,
            doc(
                "For `to: timestamp`, in RFC 3339: the first record at or after it.",
                Rule(
                    f"self.matches('{TIMESTAMP}')",
                    "timestamp must be a date and time in RFC 3339 with its zone, such as 2026-11-21T08:00:00Z",
                ),
                max_length=35,
            ),
        ]
        | None
    ) = None
    offset: (
        Annotated[
            int,
            doc(
                "For `to: offset`. One outside of what a partition has becomes the nearest that it has.",
                Rule("self >= 0", "offset must be 0 or more; for the first and the end there are earliest and latest"),
                ge=0,
            ),
        ]
        | None
    ) = None
    topics: Annotated[
        tuple[TopicName, ...],
        doc(
            "Which topics; all that the group has offsets of, where empty.",
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_TOPICS,
        ),
    ] = ()
    partitions: Annotated[
        tuple[Annotated[int, doc("A partition.", ge=0)], ...],
        doc(
            "Which partitions of the one topic; all, where empty.",
            schema={"x-kubernetes-list-type": "set"},
            max_length=MAX_PARTITIONS,
        ),
    ] = ()
    dry_run: Annotated[bool, doc("While true the plan is shown in the status, and nothing is done.")] = False

    @property
    def timestamp_ms(self) -> int | None:
        """`timestamp` in ms since 1970. Raises `ValueError` for what is no time."""
        if self.timestamp is None:
            return None
        at = datetime.fromisoformat(self.timestamp)
        if at.tzinfo is None:
            raise ValueError(f"{self.timestamp} has no time zone: write it as 2026-11-21T08:00:00Z")
        return int(at.timestamp() * 1000)


class StartingOffsets(Model, frozen=True, kw_only=True):
    """For a group that has no offsets yet."""

    topics: Annotated[
        tuple[TopicName, ...],
        doc(
            "The topics whose offsets are set.",
            schema={"x-kubernetes-list-type": "set"},
            min_length=1,
            max_length=MAX_TOPICS,
        ),
    ]
    at: Annotated[Literal["earliest", "latest"], doc("Where the group begins.")] = "earliest"


class ConsumerGroupSpec(Model, frozen=True, kw_only=True):
    cluster_ref: Annotated[ClusterRef, doc("The cluster that has the group; fixed.")]
    group_id: (
        Annotated[
            str,
            doc(
                "The group's id where it is not the object's name; fixed. For ids that Kubernetes does not allow as"
                " names.",
                min_length=1,
                max_length=MAX_GROUP_ID,
            ),
        ]
        | None
    ) = None
    reset: (
        Annotated[
            OffsetReset,
            doc(
                "Sets the group's offsets, once for each `id`, while the group has no members. Its plan is in the"
                " status. One that fails is not tried again: give it another `id`."
            ),
        ]
        | None
    ) = None
    starting_offsets: Annotated[StartingOffsets, doc("For a group that has no offsets yet.")] | None = None
    deletion_policy: Annotated[
        DeletionPolicy,
        doc("What becomes of the group's offsets when this object is deleted: Retain keeps them."),
    ] = "Retain"
    paused: Annotated[
        bool,
        doc(
            "While true nothing is changed; the status goes on being true. The group of an object that is deleted while"
            " it is paused is kept."
        ),
    ] = False

    @property
    def lasting_policy(self) -> DeletionPolicy:
        """What becomes of the group if the object is deleted as it is now."""
        return "Retain" if self.paused else self.deletion_policy


class TopicLag(Model, frozen=True, kw_only=True):
    topic: Annotated[str, doc("The topic.")]
    partitions: Annotated[int, doc("Partitions that the group has offsets of.")]
    lag: Annotated[int, doc("Records that are not read.")]
    lag_seconds: Annotated[int, doc("The age of the oldest record that is not read, where it is known.")] | None = None


class ResetStatus(Model, frozen=True, kw_only=True):
    """The newest reset: what it will do or did. `changes` names the first hundred, as topic-partition: from → to."""

    id: Annotated[str, doc("Which reset.")]
    phase: Annotated[Literal["Planned", "Done", "Refused", "Failed"], doc("How far it is.")]
    message: Annotated[str, doc("Why, for people.")] = ""
    changes: Annotated[tuple[str, ...], doc("The first hundred changes, as `topic-partition: from → to`.")] = ()
    total_changes: Annotated[int, doc("How many changes there are in all.")] = 0


class ConsumerGroupStatus(Model, frozen=True, kw_only=True):
    """Conditions: Ready (known to the brokers, or absent as it was applied), Healthy (it keeps up)."""

    observed_generation: Annotated[int, doc("The generation of the object that this status follows from.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc("Ready: known to the brokers, or absent as it was applied. Healthy: it keeps up.", schema=keyed_by("type")),
    ] = ()
    group_id: Annotated[str, doc("The group's id.")] | None = None
    state: Annotated[str, doc("As the protocol names it, or Absent.")] | None = None
    members: Annotated[int, doc("How many members the group has.")] | None = None
    lag: Annotated[int, doc("Records that are not read, in all topics.")] | None = None
    lag_seconds: Annotated[int, doc("The age of the oldest record that is not read, where it is known.")] | None = None
    topics: Annotated[tuple[TopicLag, ...], doc("The lag by topic.", schema=keyed_by("topic"))] = ()
    topic_names: Annotated[str, doc("The topics' names with commas between them, for the column.")] | None = None
    reset: Annotated[ResetStatus, doc("The newest reset: what it will do or did.")] | None = None


class ConsumerGroup(Model, frozen=True, kw_only=True):
    named: ClassVar[NamedReference] = NamedReference(
        kind="ConsumerGroup",
        short="pcg",
        description="A consumer group of a Cluster: its state and lag, and a reset of its offsets."
        " Groups that clients made appear by themselves.",
        columns=(
            PrinterColumn("Cluster", ".spec.clusterRef.name"),
            PrinterColumn("State", ".status.state"),
            PrinterColumn("Members", ".status.members", "integer"),
            PrinterColumn("Lag", ".status.lag", "integer"),
            PrinterColumn("Lag-Seconds", ".status.lagSeconds", "integer"),
            PrinterColumn("Topics", ".status.topicNames"),
            AGE,
            PrinterColumn("Group", ".status.groupId", priority=1),
            condition_column("Ready", priority=1),
            PrinterColumn("Reset", ".status.reset.phase", priority=1),
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
    spec: Annotated[ConsumerGroupSpec, doc("What is wanted.")]
    status: Annotated[ConsumerGroupStatus, doc("What the brokers report.")] = ConsumerGroupStatus()

    @property
    def group_id(self) -> str:
        return self.spec.group_id or self.metadata.name
