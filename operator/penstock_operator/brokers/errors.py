"""What can go wrong at the brokers, as `ports.brokers.BrokersError`. Used by `gateway` and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from penstock.client import BrokerError, ClientError, UnknownTopic, UnsupportedByBroker
from penstock_operator.ports.brokers import BrokersError

K = TypeVar("K")


def from_client(error: ClientError) -> BrokersError:
    """With the protocol's name of the error, where a broker answered with one, else the kind of failure."""
    if isinstance(error, BrokerError):
        return BrokersError(str(error), code=error.code.name, is_passing=error.retriable)
    if isinstance(error, UnknownTopic):
        return BrokersError(str(error), code="UNKNOWN_TOPIC_OR_PARTITION", is_passing=True)
    is_passing = not isinstance(error, UnsupportedByBroker)
    return BrokersError(str(error), code=type(error).__name__, is_passing=is_passing)


def outcomes(answers: Mapping[K, object]) -> dict[K, BrokersError | None]:
    """None for what was done, the error for what was not."""
    return {key: from_client(answer) if isinstance(answer, ClientError) else None for key, answer in answers.items()}
