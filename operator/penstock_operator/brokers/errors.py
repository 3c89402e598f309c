"""Conversion of client errors to `ports.brokers.BrokersError`. Used by the gateway modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from penstock.client import BrokerError, ClientError, UnknownTopic, UnsupportedByBroker
from penstock_operator.ports.brokers import BrokersError

K = TypeVar("K")


def from_client(error: ClientError) -> BrokersError:
    """Return the error with the Kafka error code name if a broker returned one, otherwise with the exception name."""
    if isinstance(error, BrokerError):
        return BrokersError(str(error), code=error.code.name, is_passing=error.retriable)
    if isinstance(error, UnknownTopic):
        return BrokersError(str(error), code="UNKNOWN_TOPIC_OR_PARTITION", is_passing=True)
    is_passing = not isinstance(error, UnsupportedByBroker)
    return BrokersError(str(error), code=type(error).__name__, is_passing=is_passing)


def outcomes(answers: Mapping[K, object]) -> dict[K, BrokersError | None]:
    """Return None per successful key and the error per failed key."""
    return {key: from_client(answer) if isinstance(answer, ClientError) else None for key, answer in answers.items()}
