"""What the elements of requests concern: topics by name or id, settings of different resources, topics to create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.api.authorization.rules import AuthorizationState, Right
from penstock.control.results import ConfigResource
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.primitives import ZERO_UUID


@dataclass(frozen=True, slots=True)
class SingleRight:
    """Base of subjects that require the same right for each element."""

    right: Right

    @property
    def rights(self) -> tuple[Right, ...]:
        """See `rules.Subject`."""
        return (self.right,)


@dataclass(frozen=True, slots=True)
class NamedResources(SingleRight):
    """Elements that have the name in a field, or are the name if there is no field."""

    field: str = ""

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        return self.right, getattr(element, self.field) if self.field else element


@dataclass(frozen=True, slots=True)
class TopicsByNameOrId(SingleRight):
    """Elements that name a topic, or have its `topic_id`. Unknown ids require nothing: handlers reject them."""

    field: str = "name"

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        if element.topic_id == ZERO_UUID:
            name = getattr(element, self.field)
            return (self.right, name) if name is not None else None
        known = facts.view.topics_by_id.get(element.topic_id)
        return (self.right, known.name) if known is not None else None


@dataclass(frozen=True, slots=True)
class TopicById(SingleRight):
    """Elements that have the `topic_id` of a topic. Unknown ids require nothing: handlers reject them."""

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        known = facts.view.topics_by_id.get(element.topic_id)
        return (self.right, known.name) if known is not None else None


@dataclass(frozen=True, slots=True)
class BrokerTopic(SingleRight):
    """Topics of OffsetForLeaderEpoch: by name, as clients send them, or by id, as only brokers do."""

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        if element.topic_id != ZERO_UUID:
            return Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER), CLUSTER_NAME
        return self.right, element.topic


@dataclass(frozen=True, slots=True)
class DeletedTopic(SingleRight):
    """Topics to delete, by name or by id. As in Kafka, a name requires DESCRIBE first, whether or not the topic exists;
    an id does not, and what is missing requires nothing else.
    """

    field: str = ""

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        is_describe = self.right.operation is AclOperation.DESCRIBE
        if self.field and element.topic_id != ZERO_UUID:
            known = facts.view.topics_by_id.get(element.topic_id)
            return (self.right, known.name) if known is not None and not is_describe else None
        name = element.name if self.field else element
        return (self.right, name) if name is not None and (is_describe or name in facts.view.topics) else None


@dataclass(frozen=True, slots=True)
class MissingTopic:
    """Topics that a Metadata request would create."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """See `rules.Subject`."""
        return (Right(AclOperation.CREATE, ResourceType.TOPIC),)

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        is_known = element.topic_id != ZERO_UUID or element.name is None or element.name in facts.view.topics
        if is_known or not facts.config.auto_create_topics_enable:
            return None
        return self.rights[0], element.name


@dataclass(frozen=True, slots=True)
class Settings:
    """Resources with settings: those of brokers belong to the cluster."""

    operation: AclOperation

    @property
    def rights(self) -> tuple[Right, ...]:
        """See `rules.Subject`."""
        types = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
        return tuple(Right(self.operation, resource) for resource in types)

    def find(self, element: Any, request: Any, facts: AuthorizationState) -> tuple[Right, str] | None:
        """See `rules.Subject`."""
        if element.resource_type == ConfigResource.TOPIC:
            return Right(self.operation, ResourceType.TOPIC), element.resource_name
        if element.resource_type == ConfigResource.GROUP:
            return Right(self.operation, ResourceType.GROUP), element.resource_name
        return Right(self.operation, ResourceType.CLUSTER), CLUSTER_NAME
