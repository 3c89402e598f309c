"""Retries transient errors until a deadline; permanent errors are raised as `Refused` at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client import BrokerError, ClientError, ClusterConnections, ErrorCode
from penstock_spark.model.errors import Refused, Unavailable

T = TypeVar("T")


async def retry_until_deadline(
    cluster: ClusterConnections, give_up_ms: int, about: str, attempt: Callable[[], Awaitable[T]]
) -> T:
    """Repeat `attempt` with backoff while it raises retriable errors. Raises `Unavailable`, `Refused`."""
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
        raise gave_up(about, give_up_ms, last) from last


def gave_up(about: str, give_up_ms: int, last: Exception | str | None) -> Unavailable:
    """Return the error for a deadline, with the last obstacle."""
    return Unavailable(f"{about}: gave up after {give_up_ms} ms; {last or 'no broker answered'}")


def refused(about: str, error: ClientError) -> Refused:
    """Return the error for a permanent failure, with advice if the error code is known."""
    advice = ADVICE.get(error.code, "") if isinstance(error, BrokerError) else ""
    return Refused(f"{about}: {error}{advice}")


ADVICE = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: " (grant the user the rights to read and describe the topic)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: " (grant the user the right to read with this group)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: " (grant the user the missing right on the cluster)",
    ErrorCode.UNKNOWN_MEMBER_ID: " (the group has active members; choose a group that no consumer uses)",
    ErrorCode.INVALID_TOPIC_EXCEPTION: " (use letters, digits, '.', '_' and '-', at most 249)",
}
