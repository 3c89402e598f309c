"""The rights of the client that sent a request. Denied operations go to the audit log."""

from __future__ import annotations

from uuid import UUID

from penstock.api.exchange import PeerInfo
from penstock.security.audit import AuditLog
from penstock.security.authorizer import Authorizer
from penstock.state.view import ClusterView
from penstock.wire.acl import CLUSTER_NAME, AclOperation, ResourceType
from penstock.wire.apis import ApiKey, api_name

OUTDATED_RIGHTS = "this broker's ACLs may be outdated because its store does not respond; use another broker"
"""Why a connection is closed whose requests cannot be authorized. Clients connect to another broker or try again."""


class Access:
    """The rights of one client, for a request of an API."""

    __slots__ = ("api_key", "audit", "authorizer", "peer")

    def __init__(self, authorizer: Authorizer, audit: AuditLog, peer: PeerInfo, api_key: int) -> None:
        self.authorizer, self.audit, self.peer, self.api_key = authorizer, audit, peer, api_key

    def may(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return whether the client may do an operation, without a trace in the audit log."""
        return self.authorizer.is_allowed(self.peer.principal, self.peer.host, operation, resource, name)

    def may_for_any(self, operation: AclOperation, resource: ResourceType) -> bool:
        """Return whether the client may do an operation on some resource of a type."""
        return self.authorizer.is_allowed_for_any(self.peer.principal, self.peer.host, operation, resource)

    def deny(self, operation: AclOperation, resource: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Record that the client was denied an operation."""
        peer, request = self.peer, api_name(self.api_key)
        self.audit.record_denial(peer.principal, peer.host, operation, resource, name, request)


class DataAccess:
    """Checks of the data path: one topic and one operation at a time. Used by `produce` and `fetch`.

    A right that a caller remembers is valid while `authorizer.generation` stays the same.
    """

    def __init__(self, authorizer: Authorizer, view: ClusterView, audit: AuditLog) -> None:
        self.authorizer, self.view, self.audit = authorizer, view, audit

    def name_of(self, topic: str | UUID) -> str | None:
        """Return the name of a topic; None for an id that is unknown."""
        if isinstance(topic, str):
            return topic
        known = self.view.topics_by_id.get(topic)
        return known.name if known is not None else None

    def is_writable(self, peer: PeerInfo, topic: str | UUID) -> bool | None:
        """Return whether a client may produce to a topic; None for an unknown id. Records nothing."""
        name, authorizer = self.name_of(topic), self.authorizer
        if name is None:
            return None
        is_allowed = authorizer.is_allowed(peer.principal, peer.host, AclOperation.WRITE, ResourceType.TOPIC, name)
        return is_allowed or self._may_write_as_broker(peer, name)

    def _may_write_as_broker(self, peer: PeerInfo, name: str) -> bool:
        """Return whether a client is a broker, which may produce to the topics of dead letters (KIP-1191) and relay
        records of sealed partitions."""
        topic = self.view.topics.get(name)
        if topic is None or not (topic.config.errors_deadletterqueue_group_enable or topic.seals):
            return False
        operation, cluster = AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER
        return self.authorizer.is_allowed(peer.principal, peer.host, operation, cluster, CLUSTER_NAME)

    def may_write(self, peer: PeerInfo, topic: str | UUID) -> bool:
        """Return whether a client may produce to a topic. An unknown id is left to the handler, which rejects it."""
        name = self.name_of(topic)
        if name is None or self.is_writable(peer, topic):
            return True
        self.deny(peer, AclOperation.WRITE, ResourceType.TOPIC, name, ApiKey.PRODUCE)
        return False

    def may_use_transactional_id(self, peer: PeerInfo, transactional_id: str | None) -> bool:
        """Return whether a client may produce with a transactional id; None requires no right."""
        kind = ResourceType.TRANSACTIONAL_ID
        return transactional_id is None or self.check(peer, AclOperation.WRITE, kind, transactional_id, ApiKey.PRODUCE)

    def may_follow(self, peer: PeerInfo) -> bool:
        """Return whether a client may fetch as a follower: only brokers may (CVE-2018-1288)."""
        return self.check(peer, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME, ApiKey.FETCH)

    def check(
        self, peer: PeerInfo, operation: AclOperation, resource: ResourceType, name: str, api_key: ApiKey
    ) -> bool:
        """Return whether an operation is allowed, and record a denial."""
        if self.authorizer.is_allowed(peer.principal, peer.host, operation, resource, name):
            return True
        self.deny(peer, operation, resource, name, api_key)
        return False

    def deny(self, peer: PeerInfo, operation: AclOperation, resource: ResourceType, name: str, api_key: ApiKey) -> None:
        """Record that a client was denied an operation."""
        Access(self.authorizer, self.audit, peer, api_key).deny(operation, resource, name)
