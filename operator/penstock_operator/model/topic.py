"""The `Topic` resource: partitions, replicas and settings of a topic."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from penstock.config.internal_topics import INTERNAL_TOPICS
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
from penstock_operator.model.fields import PrinterColumn, Rule, doc
from penstock_operator.model.settings import CONFIG_VALUE, MAX_SETTINGS, topic_rules

MAX_PARTITIONS = 10_000
MAX_REPLICAS = 32
"""The brokers' limit of replicas per partition."""


INTERNAL_NAME_RULE = Rule(
    f"!(self in [{', '.join(repr(name) for name in sorted(INTERNAL_TOPICS))}])",
    "topicName cannot be the name of an internal topic: choose another name",
)


class TopicSpec(Model, frozen=True, kw_only=True):
    """Desired state of a `Topic`. None: the broker default at creation, unmanaged afterwards."""

    cluster_ref: Annotated[ClusterRef, doc("Cluster of the topic. Immutable.")]
    topic_name: (
        Annotated[
            str,
            doc(
                "Topic name. Default: the name of the object. Immutable. Needed for names that are not valid Kubernetes"
                " names.",
                topic_name_rule("topicName"),
                INTERNAL_NAME_RULE,
                min_length=1,
                max_length=MAX_TOPIC_NAME,
            ),
        ]
        | None
    ) = None
    partitions: (
        Annotated[
            int,
            doc(
                "Number of partitions. Default: the brokers' num.partitions at creation, unmanaged afterwards. It can"
                " be increased at any time, and decreased if decreasePartitionsTo has the same number.",
                Rule(
                    f"self >= 1 && self <= {MAX_PARTITIONS}",
                    f"partitions must be 1 to {MAX_PARTITIONS}; omit it to use the brokers' default",
                ),
                ge=1,
                le=MAX_PARTITIONS,
            ),
        ]
        | None
    ) = None
    decrease_partitions_to: (
        Annotated[
            int,
            doc(
                "Confirms a decrease of `partitions` to this number; with another one, `partitions` can only be"
                " increased. Surplus partitions are sealed, and no longer shown to clients once all groups have read"
                " them; keys map to other partitions. Increase `partitions` again to cancel.",
                Rule(
                    f"self >= 1 && self <= {MAX_PARTITIONS}",
                    f"decreasePartitionsTo must be 1 to {MAX_PARTITIONS}, the new number of partitions",
                ),
                ge=1,
                le=MAX_PARTITIONS,
            ),
        ]
        | None
    ) = None
    replicas: (
        Annotated[
            int,
            doc(
                "Replication factor, at most the number of brokers. Default: the brokers' default.replication.factor at"
                " creation, unmanaged afterwards.",
                Rule(
                    f"self >= 1 && self <= {MAX_REPLICAS}",
                    f"replicas must be 1 to {MAX_REPLICAS}, and at most the number of brokers;"
                    " omit it to use the brokers' default",
                ),
                ge=1,
                le=MAX_REPLICAS,
            ),
        ]
        | None
    ) = None
    config: Annotated[
        dict[str, str],
        doc(
            "Topic settings, by Kafka name. Settings that are not listed have the brokers' defaults, except the"
            " settings that an adopted topic had before (status.keptSettings). Quote booleans and fractions"
            ' ("true", "0.5").',
            *topic_rules(),
            schema=CONFIG_VALUE,
            max_length=MAX_SETTINGS,
        ),
    ] = {}
    deletion_policy: Annotated[
        DeletionPolicy,
        doc("Whether to delete the topic and its records when this object is deleted. Retain keeps the topic."),
    ] = "Retain"
    paused: Annotated[
        bool,
        doc(
            "If true, the operator updates the status but changes nothing else. If the object is deleted while it is"
            " paused, the topic is kept."
        ),
    ] = False

    @property
    def lasting_policy(self) -> DeletionPolicy:
        """The deletion policy in effect: a paused object retains its topic."""
        return "Retain" if self.paused else self.deletion_policy


DecreasePhase = Literal["Sealing", "Draining", "Retired", "Opening"]


class TopicSeal(Model, frozen=True, kw_only=True):
    """A sealed partition."""

    partition: Annotated[int, doc("Number of the partition.")]
    offset: Annotated[int, doc("Consumers read the records below this offset; later records are relayed.")]
    target: Annotated[int, doc("Partition to which records are relayed.")]


class DrainingReader(Model, frozen=True, kw_only=True):
    """A group that has not read all sealed partitions."""

    group: Annotated[str, doc("Group id.")]
    partitions: Annotated[int, doc("Number of sealed partitions that the group has to read.")]
    lag: Annotated[int, doc("Number of records in them that the group has not read.")]


class PartitionDecrease(Model, frozen=True, kw_only=True):
    """Progress of a decrease of the number of partitions."""

    phase: Annotated[
        DecreasePhase,
        doc(
            "Sealing: partition leaders seal the surplus partitions. Draining: groups read them to the end. Retired:"
            " clients no longer see them; records that are still sent to them are relayed. Opening: the number was"
            " increased again."
        ),
    ]
    remaining: Annotated[int, doc("Number of partitions that remain.")]
    sealed: Annotated[int, doc("Number of sealed partitions.")] = 0
    seals: Annotated[tuple[TopicSeal, ...], doc("The first 50 sealed partitions.", schema=keyed_by("partition"))] = ()
    waiting_groups: Annotated[
        tuple[DrainingReader, ...],
        doc("Groups that have to read sealed partitions: the 10 with the largest lag.", schema=keyed_by("group")),
    ] = ()
    waiting_group_count: Annotated[int, doc("Number of groups that have to read sealed partitions.")] = 0


class TopicStatus(Model, frozen=True, kw_only=True):
    """Observed state of a `Topic`."""

    observed_generation: Annotated[int, doc("Generation of the object that the operator last reconciled.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: the topic is synced, or its partitions are being decreased, and all partitions have a leader."
            " Synced: the topic matches the spec. Healthy: all replicas are in sync and all partitions have a leader."
            " Progressing: replicas are moving, or partitions are being decreased.",
            schema=keyed_by("type"),
        ),
    ] = ()
    topic_name: Annotated[str, doc("Topic name.")] | None = None
    topic_id: Annotated[str, doc("Topic id. A topic that is deleted and created again has another id.")] | None = None
    partitions: Annotated[int, doc("Number of partitions that clients see.")] | None = None
    replicas: Annotated[int, doc("Replication factor; the smallest one if partitions differ.")] | None = None
    in_sync: Annotated[int, doc("Number of partitions with all replicas in sync.")] | None = None
    under_replicated: Annotated[int, doc("Number of partitions with replicas that are not in sync.")] | None = None
    offline: Annotated[int, doc("Number of partitions without a leader.")] | None = None
    moving: Annotated[int, doc("Number of partitions whose replicas are moving.")] | None = None
    decrease: Annotated[PartitionDecrease, doc("Decrease of the number of partitions, if any is sealed.")] | None = None
    kept_settings: Annotated[
        tuple[str, ...],
        doc(
            "Settings that the topic had when this object adopted it and that the spec does not list. The operator does"
            " not change them.",
            max_length=MAX_SETTINGS,
        ),
    ] = ()


class Topic(Model, frozen=True, kw_only=True):
    """A topic of a `Cluster`."""

    kind_info: ClassVar[KindInfo] = KindInfo(
        kind="Topic",
        short="pt",
        description="A topic of a Cluster. The operator keeps its partitions, replicas and settings as specified.",
        columns=(
            PrinterColumn("Cluster", ".spec.clusterRef.name"),
            PrinterColumn("Partitions", ".status.partitions", "integer"),
            PrinterColumn("Replicas", ".status.replicas", "integer"),
            PrinterColumn("In-Sync", ".status.inSync", "integer"),
            condition_column("Ready"),
            AGE,
            PrinterColumn("Topic", ".status.topicName", priority=1),
            PrinterColumn("Offline", ".status.offline", "integer", priority=1),
            PrinterColumn("Decrease", ".status.decrease.phase", priority=1),
            PrinterColumn("Delay-Ms", r".spec.config['delivery\.delay\.ms']", priority=1),
            condition_column("Synced", priority=1),
            condition_column("Healthy", priority=1),
            message_column(),
        ),
    )
    rules = (
        Rule(
            f"has(self.spec.topicName) || size(self.metadata.name) <= {MAX_TOPIC_NAME}",
            f"the object's name is too long for a topic name: set spec.topicName, at most {MAX_TOPIC_NAME} characters",
        ),
        Rule(
            "(has(self.spec.topicName) ? self.spec.topicName : self.metadata.name) =="
            " (has(oldSelf.spec.topicName) ? oldSelf.spec.topicName : oldSelf.metadata.name)",
            "topicName cannot be changed: topics cannot be renamed; create another Topic and delete this one"
            " (deletionPolicy Retain keeps the data)",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[TopicSpec, doc("Desired state of the topic.")]
    status: Annotated[TopicStatus, doc("State of the topic as the brokers report it.")] = TopicStatus()

    @property
    def topic_name(self) -> str:
        """Topic name: `spec.topicName`, or the name of the object."""
        return self.spec.topic_name or self.metadata.name
