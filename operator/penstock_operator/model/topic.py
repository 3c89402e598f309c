"""`Topic`: a topic of a cluster, wanted as it is written."""

from __future__ import annotations

from penstock_operator.model.common import ClusterRef, Condition, DeletionPolicy, Meta, Model


class TopicSpec(Model, frozen=True, kw_only=True):
    """None means: as the brokers' defaults say at creation, and left as it is afterwards."""

    cluster_ref: ClusterRef
    topic_name: str | None = None
    """The topic's name where it is not the object's."""
    partitions: int | None = None
    replicas: int | None = None
    config: dict[str, str] = {}
    deletion_policy: DeletionPolicy = "Retain"
    paused: bool = False


class TopicStatus(Model, frozen=True, kw_only=True):
    """What the brokers report. Conditions: Ready (usable as it is wanted), Synced (the brokers have what is wanted),
    Healthy (all replicas in sync, all partitions led), Progressing (replicas are moving)."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    topic_name: str | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    in_sync: int | None = None
    """Partitions all of whose replicas are in sync."""
    under_replicated: int | None = None
    offline: int | None = None
    """Partitions without a leader."""
    moving: int | None = None


class Topic(Model, frozen=True, kw_only=True):
    metadata: Meta
    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        return self.spec.topic_name or self.metadata.name
