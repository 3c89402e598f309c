"""How long brokers are waited for: what may pass is repeated until a deadline, what cannot is `Refused` at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client import BrokerError, ClientError, ErrorCode
from penstock.client.cluster import ClusterConnections
from penstock_spark.model.errors import Refused, Unavailable

T = TypeVar("T")


async def patiently(cluster: ClusterConnections, give_up_ms: int, about: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats `attempt` with backoff while it raises errors that may pass. Raises `Unavailable`, `Refused`."""
    last: ClientError | None = None
    count = 0
    try:
        async with asyncio.timeout(give_up_ms / 1000):
            while True:
                try:
                    return await attempt()
                except ClientError as e:
                    if not e.retriable:
                        raise refused(about, e) from e
                    last = e
                cluster.invalidate()
                await asyncio.sleep(cluster.backoff.delay_s(count))
                count += 1
    except TimeoutError:
        raise given_up(about, give_up_ms, last) from last


def given_up(about: str, give_up_ms: int, last: Exception | str | None) -> Unavailable:
    """Says what stood in the way until the end."""
    return Unavailable(f"{about}: given up after {give_up_ms} ms; {last or 'no broker answered'}")


def refused(about: str, error: ClientError) -> Refused:
    """With the cure, where the broker's code tells it."""
    cure = CURES.get(error.code, "") if isinstance(error, BrokerError) else ""
    return Refused(f"{about}: {error}{cure}")


CURES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: " (the user needs the rights to read and to describe the topic)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: " (the user needs the right to read with this group)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: " (the user lacks a right on the cluster)",
    ErrorCode.UNKNOWN_MEMBER_ID: " (the group has members of its own: choose a group that nobody else uses)",
    ErrorCode.INVALID_TOPIC_EXCEPTION: " (names have letters, digits, '.', '_' and '-', at most 249)",
}
