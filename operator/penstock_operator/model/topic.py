"""`Topic`: a topic of a cluster, wanted as it is written."""

from __future__ import annotations

from typing import Annotated, ClassVar

from penstock.config.internal_topics import INTERNAL_TOPICS
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
from penstock_operator.model.fields import PrinterColumn, Rule, doc
from penstock_operator.model.settings import CONFIG_VALUE, MAX_SETTINGS, topic_rules

MAX_PARTITIONS = 10_000
MAX_REPLICAS = 32
"""As many as brokers let a partition have."""


INTERNAL_NAME_RULE = Rule(
    f"!(self in [{', '.join(repr(name) for name in sorted(INTERNAL_TOPICS))}])",
    "topicName cannot be that of a topic of Kafka's own: choose another",
)


class TopicSpec(Model, frozen=True, kw_only=True):
    """None means: as the brokers' defaults say at creation, and left as it is afterwards."""

    cluster_ref: Annotated[ClusterRef, doc("The cluster that has the topic; fixed.")]
    topic_name: (
        Annotated[
            str,
            doc(
                "The topic's name where it is not the object's; fixed. For names that Kubernetes does not allow.",
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
                "How many partitions. Left out: num.partitions of the brokers at creation, and as it is afterwards."
                " More may be asked for at any time; fewer are not done, and condition Synced says so.",
                Rule(
                    f"self >= 1 && self <= {MAX_PARTITIONS}",
                    f"partitions must be 1 to {MAX_PARTITIONS}; leave it out for the brokers' default",
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
                "The replication factor, at most as many as there are brokers. Left out: default.replication.factor of"
                " the brokers at creation, and as it is afterwards.",
                Rule(
                    f"self >= 1 && self <= {MAX_REPLICAS}",
                    f"replicas must be 1 to {MAX_REPLICAS}, and not more than brokers;"
                    " leave it out for the brokers' default",
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
            "Settings of the topic by Kafka's names. Those that are left out have the brokers' defaults, except those"
            " that a topic had when this object took it over (status.keptSettings). Truths and fractions are written in"
            ' quotes ("true", "0.5").',
            *topic_rules(),
            schema=CONFIG_VALUE,
            max_length=MAX_SETTINGS,
        ),
    ] = {}
    deletion_policy: Annotated[
        DeletionPolicy,
        doc("What becomes of the topic, and of its data, when this object is deleted: Retain keeps it."),
    ] = "Retain"
    paused: Annotated[
        bool,
        doc(
            "While true nothing is changed; the status goes on being true. The topic of an object that is deleted while"
            " it is paused is kept."
        ),
    ] = False

    @property
    def lasting_policy(self) -> DeletionPolicy:
        """What becomes of the topic if the object is deleted as it is now."""
        return "Retain" if self.paused else self.deletion_policy


class TopicStatus(Model, frozen=True, kw_only=True):
    """What the brokers report. Conditions: Ready (usable as it is wanted), Synced (the brokers have what is wanted),
    Healthy (all replicas in sync, all partitions led), Progressing (replicas are moving)."""

    observed_generation: Annotated[int, doc("The generation of the object that this status follows from.")] = 0
    conditions: Annotated[
        tuple[Condition, ...],
        doc(
            "Ready: usable as it is wanted. Synced: the brokers have what is wanted. Healthy: all replicas are in sync"
            " and all partitions have a leader. Progressing: replicas are moving.",
            schema=keyed_by("type"),
        ),
    ] = ()
    topic_name: Annotated[str, doc("The topic's name.")] | None = None
    topic_id: Annotated[str, doc("The topic's id; a topic that was created again has another.")] | None = None
    partitions: Annotated[int, doc("Partitions that there are.")] | None = None
    replicas: (
        Annotated[int, doc("The replication factor that there is; of partitions that differ, the least.")] | None
    ) = None
    in_sync: Annotated[int, doc("Partitions all of whose replicas are in sync.")] | None = None
    under_replicated: Annotated[int, doc("Partitions some of whose replicas are not in sync.")] | None = None
    offline: Annotated[int, doc("Partitions without a leader.")] | None = None
    moving: Annotated[int, doc("Partitions whose replicas are moving.")] | None = None
    kept_settings: Annotated[
        tuple[str, ...],
        doc(
            "Settings that the topic had when this object took it over and that the object does not name: they stay as"
            " they are.",
            max_length=MAX_SETTINGS,
        ),
    ] = ()


class Topic(Model, frozen=True, kw_only=True):
    named: ClassVar[NamedReference] = NamedReference(
        kind="Topic",
        short="pt",
        description="A topic of a Cluster: partitions, replicas and settings, kept as they are written.",
        columns=(
            PrinterColumn("Cluster", ".spec.clusterRef.name"),
            PrinterColumn("Partitions", ".status.partitions", "integer"),
            PrinterColumn("Replicas", ".status.replicas", "integer"),
            PrinterColumn("In-Sync", ".status.inSync", "integer"),
            condition_column("Ready"),
            AGE,
            PrinterColumn("Topic", ".status.topicName", priority=1),
            PrinterColumn("Offline", ".status.offline", "integer", priority=1),
            condition_column("Synced", priority=1),
            condition_column("Healthy", priority=1),
            message_column(),
        ),
    )
    rules = (
        Rule(
            f"has(self.spec.topicName) || size(self.metadata.name) <= {MAX_TOPIC_NAME}",
            f"the object's name is too long for a topic: give spec.topicName, at most {MAX_TOPIC_NAME} characters",
        ),
        Rule(
            "(has(self.spec.topicName) ? self.spec.topicName : self.metadata.name) =="
            " (has(oldSelf.spec.topicName) ? oldSelf.spec.topicName : oldSelf.metadata.name)",
            "topicName cannot be changed, a topic has no other name: create another Topic, and delete this one"
            " (deletionPolicy Retain keeps the data)",
        ),
    )

    metadata: ObjectMeta
    spec: Annotated[TopicSpec, doc("What is wanted.")]
    status: Annotated[TopicStatus, doc("What the brokers report.")] = TopicStatus()

    @property
    def topic_name(self) -> str:
        return self.spec.topic_name or self.metadata.name
