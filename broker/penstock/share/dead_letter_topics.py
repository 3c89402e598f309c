"""Finds the partition for a share-partition's dead letters, and creates the topic if the broker may (KIP-1191).

Used by `dead_letter_writer` before each batch: settings and topics change while letters are pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from penstock.config.broker import BrokerConfig
from penstock.config.topic import CLEANUP, DEAD_LETTERS_ENABLED, DELIVERY_SCHEDULE
from penstock.control.results import TopicOutcome, TopicRequest
from penstock.share.dead_letters import DeadLetterTarget
from penstock.state import keys
from penstock.state.store import Store
from penstock.state.view import ClusterView, TopicView
from penstock.wire.errors import ErrorCode

AUTO_CREATE = "errors.deadletterqueue.auto.create.topics.enable"
NAME_PREFIX = "errors.deadletterqueue.topic.name.prefix"
LETTER_TOPIC_SETTINGS: dict[str, str | None] = {DEAD_LETTERS_ENABLED: "true", CLEANUP: "delete"}
"""Settings of topics that the broker creates."""
INTERNAL_PREFIX = "__"


class TopicCreator(Protocol):
    """Creates topics: `control.topic_admin.TopicService`."""

    async def create(self, topics: Sequence[TopicRequest]) -> list[TopicOutcome]:
        """Create topics; the results are in the order of the topics."""


class DeadLetterTopicUnavailable(Exception):
    """Letters cannot be written to the group's dead-letter topic now; the message has the reason and what to do."""


class DeadLetterTopics:
    """The dead-letter topics of the cluster."""

    def __init__(self, view: ClusterView, config: BrokerConfig, creator: TopicCreator, store: Store) -> None:
        self._view, self._config, self._creator, self._store = view, config, creator, store

    async def find(self, name: str, source_partition: int) -> DeadLetterTarget:
        """Return the partition for the letters of a source partition. Raises DeadLetterTopicUnavailable, StoreError."""
        topic = self._check(name) or await self._create(name)
        return DeadLetterTarget(topic.topic_id, source_partition % topic.shown_count)

    def topic(self, topic_id: UUID) -> TopicView | None:
        """Return a topic that this broker knows."""
        return self._view.topics_by_id.get(topic_id)

    async def is_deleted(self, topic_id: UUID) -> bool:
        """Return whether a topic, which has existed, is deleted. Raises StoreError.

        This broker may not know of it yet, so the store decides.
        """
        if topic_id in self._view.topics_by_id:
            return False
        return topic_id in self._view.deleting or await self._store.get(keys.topic(topic_id)) is None

    def _check(self, name: str) -> TopicView | None:
        """Return the topic, None if it may be created. The checks have Kafka's order.

        Raises DeadLetterTopicUnavailable.
        """
        topic, config = self._view.topics.get(name), self._config
        if name.startswith(INTERNAL_PREFIX):
            raise DeadLetterTopicUnavailable(f'"{name}" is the name of an internal topic; choose another name')
        if topic is not None and not topic.config.errors_deadletterqueue_group_enable:
            raise DeadLetterTopicUnavailable(
                f'topic "{name}" does not accept dead letters; set {DEAD_LETTERS_ENABLED}=true on it'
            )
        if topic is not None and topic.config.delivery_schedule_enable:
            why = "the headers of a record would delay its letter, or cancel others"
            raise DeadLetterTopicUnavailable(
                f'topic "{name}" schedules records: {why}; set {DELIVERY_SCHEDULE}=false on it'
            )
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix):
            raise DeadLetterTopicUnavailable(
                f'"{name}" does not start with "{prefix}"; choose another name, or set {NAME_PREFIX}'
            )
        if topic is None and not config.errors_deadletterqueue_auto_create_topics_enable:
            how = f"create it with {DEAD_LETTERS_ENABLED}=true, or set {AUTO_CREATE}=true"
            raise DeadLetterTopicUnavailable(f'topic "{name}" does not exist; {how}')
        return topic

    async def _create(self, name: str) -> TopicView:
        (outcome,) = await self._creator.create([TopicRequest(name, settings=LETTER_TOPIC_SETTINGS)])
        created = self._view.topics.get(name)
        if outcome.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS) or created is None:
            raise DeadLetterTopicUnavailable(
                f'topic "{name}" cannot be created: {outcome.message or outcome.error.name}'
            )
        return created
