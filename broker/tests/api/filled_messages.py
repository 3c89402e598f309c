"""Fills requests of any API with names of one topic, group and transactional id."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.wire.schema import Field, Message

TOPIC, GROUP, TRANSACTION = "t", "g", "x"
VALUES: dict[str, Any] = {
    "name": TOPIC,
    "topic": TOPIC,
    "topic_name": TOPIC,
    "resource_name": TOPIC,
    "resource_type": 2,
    "group_id": GROUP,
    "key": GROUP,
    "transactional_id": TRANSACTION,
    "v3_and_below_transactional_id": TRANSACTION,
    "producer_id": 1,
    "producer_epoch": 0,
    "v3_and_below_producer_id": 1,
    "session_epoch": -1,
    "max_bytes": 1000,
    "acks": -1,
}
LISTS: dict[str, list[Any]] = {
    "groups": [GROUP],
    "group_ids": [GROUP],
    "subscribed_topic_names": [TOPIC],
    "groups_names": [GROUP],
    "coordinator_keys": [GROUP],
    "transactional_ids": [TRANSACTION],
    "topic_names": [TOPIC],
    "partitions": [0],
    "partition_indexes": [0],
}


def filled(kind: type[Message], version: int, topic_id: UUID) -> Any:
    """Return a message of a version; a topic has its id if it has no name in that version."""
    fields = [f for f in kind.FIELDS if f.first <= version <= f.last and f.tag is None]
    names = {f.name for f in fields}
    values = {f.name: value for f in fields if (value := value_of(f, version, topic_id)) is not None}
    if "topic_id" in names and not names & {"name", "topic"}:
        values["topic_id"] = topic_id
    return kind(**values)


def value_of(field: Field, version: int, topic_id: UUID) -> Any:
    """Return a field's value; None for its default."""
    if field.array:
        if isinstance(field.type, type):
            return [filled(field.type, version, topic_id)]
        return LISTS.get(field.name)
    return VALUES.get(field.name) if isinstance(field.type, str) and field.type != "records" else None
