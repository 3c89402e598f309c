"""Requests about many items: sent in chunks, with one result per item, and retries of retriable errors.

Used by the admin client. Errors of single items are returned instead of raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from typing import TypeVar

from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError
from penstock.wire.errors import ErrorCode

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

AMBIGUOUS_ERRORS = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.REQUEST_TIMED_OUT}
)
"""Retriable errors that a client which changes topics must see: the change may have been made, or the topic is gone."""


def is_retriable(error: ClientError) -> bool:
    """Return whether to retry a read."""
    return error.retriable


def no_retry(error: ClientError) -> bool:
    """Return False; for callers that retry themselves."""
    return False


def was_not_executed(error: ClientError) -> bool:
    """Return whether to retry a change of a topic: the request did not reach the controller."""
    return error.retriable and not (isinstance(error, BrokerError) and error.code in AMBIGUOUS_ERRORS)


async def request_each(
    cluster: ClusterConnections,
    keys: Iterable[K],
    request: Callable[[list[K]], Awaitable[Mapping[K, T | ClientError]]],
    *,
    chunk_size: int,
    should_retry: Callable[[ClientError], bool] = is_retriable,
) -> dict[K, T | ClientError]:
    """Return a result for each of `keys`, in order.

    `request` is called with at most `chunk_size` items. If it raises a ClientError, all of them failed. Items whose
    error satisfies `should_retry` are requested again until the request timeout has passed since the last success.
    """
    results: dict[K, T | ClientError] = {}
    remaining = order = list(dict.fromkeys(keys))
    loop, timeout_s = asyncio.get_running_loop(), cluster.request_timeout_ms / 1000
    deadline_s, attempt = loop.time() + timeout_s, 0
    failure: ClientError | None = None
    while True:
        for start in range(0, len(remaining), chunk_size):
            chunk = remaining[start : start + chunk_size]
            if failure is not None and loop.time() >= deadline_s:
                results |= dict.fromkeys(chunk, failure)  # unreachable: do not wait as long for the remaining chunks
                continue
            try:
                found = await request(chunk)
            except ClientError as e:
                failure, found = e, dict.fromkeys(chunk, e)
            results |= {key: found[key] if key in found else missing_result(key) for key in chunk}
            if not all(isinstance(results[key], ClientError) for key in chunk):
                failure, deadline_s = None, loop.time() + timeout_s
        remaining = [
            key for key in remaining if isinstance(result := results[key], ClientError) and should_retry(result)
        ]
        delay_s = cluster.backoff.delay_s(attempt)
        if not remaining or loop.time() + delay_s >= deadline_s:
            return {key: results[key] for key in order}
        cluster.invalidate()
        await asyncio.sleep(delay_s)
        attempt += 1


def missing_result(key: Hashable) -> ClientError:
    """Return the error for an item that is missing in the response."""
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(key), "the broker's response does not include it")


def all_or_raise(results: Mapping[K, T | ClientError]) -> dict[K, T]:
    """Return the results if all succeeded. Raises the first error."""
    found: dict[K, T] = {}
    for key, result in results.items():
        if isinstance(result, ClientError):
            raise result
        found[key] = result
    return found


async def gather_each(request: Callable[[K], Awaitable[T]], keys: Iterable[K]) -> dict[K, T | ClientError]:
    """Call `request` for each item concurrently; return its results and errors."""

    async def attempt(key: K) -> T | ClientError:
        try:
            return await request(key)
        except ClientError as e:
            return e

    items = list(keys)
    return dict(zip(items, await asyncio.gather(*map(attempt, items)), strict=True))


async def request_by_node(
    nodes: Mapping[int, list[K]], request: Callable[[int, list[K]], Awaitable[Mapping[K, T | ClientError]]]
) -> dict[K, T | ClientError]:
    """Send requests to several brokers concurrently. If one fails, only its items fail."""

    async def attempt(node_id: int, chunk: list[K]) -> Mapping[K, T | ClientError]:
        try:
            return await request(node_id, chunk)
        except ClientError as e:
            return dict.fromkeys(chunk, e)

    results: dict[K, T | ClientError] = {}
    for found in await asyncio.gather(*(attempt(node_id, chunk) for node_id, chunk in nodes.items())):
        results |= found
    return results
