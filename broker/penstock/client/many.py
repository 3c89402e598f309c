"""Requests about thousands of things: in chunks, each thing with an answer of its own, repeated where that can help.

What the admin client's calls for many are made of. Nothing is raised for one of them: an error is its answer.
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

FINAL = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.REQUEST_TIMED_OUT})
"""Errors that may pass, but of which who changes topics is to hear: the change may be made, or the topic be gone."""


def may_pass(error: ClientError) -> bool:
    """Whether to ask again where something is looked at."""
    return error.retriable


def never(error: ClientError) -> bool:
    """Where who asks will ask again anyway."""
    return False


def is_elsewhere(error: ClientError) -> bool:
    """Whether to ask again where a topic is changed: the request did not reach who decides."""
    return error.retriable and not (isinstance(error, BrokerError) and error.code in FINAL)


async def ask_each(
    cluster: ClusterConnections,
    wanted: Iterable[K],
    ask: Callable[[list[K]], Awaitable[Mapping[K, T | ClientError]]],
    *,
    at_a_time: int,
    again: Callable[[ClientError], bool] = may_pass,
) -> dict[K, T | ClientError]:
    """The answer for each of `wanted`, in their order.

    `ask` is given `at_a_time` of them at most. It raises a ClientError where all of those failed. Those whose error may
    pass (`again`) are asked for once more until the cluster's request timeout is over, counted from the last answer
    that was none.
    """
    answers: dict[K, T | ClientError] = {}
    left = order = list(dict.fromkeys(wanted))
    loop, patience_s = asyncio.get_running_loop(), cluster.request_timeout_ms / 1000
    deadline_s, attempt = loop.time() + patience_s, 0
    failure: ClientError | None = None
    while True:
        for start in range(0, len(left), at_a_time):
            part = left[start : start + at_a_time]
            if failure is not None and loop.time() >= deadline_s:
                answers |= dict.fromkeys(part, failure)  # nobody is there: the others are not to wait as long again
                continue
            try:
                found = await ask(part)
            except ClientError as e:
                failure, found = e, dict.fromkeys(part, e)
            answers |= {key: found[key] if key in found else not_answered(key) for key in part}
            if not all(isinstance(answers[key], ClientError) for key in part):
                failure, deadline_s = None, loop.time() + patience_s
        left = [key for key in left if isinstance(answer := answers[key], ClientError) and again(answer)]
        delay_s = cluster.backoff.delay_s(attempt)
        if not left or loop.time() + delay_s >= deadline_s:
            return {key: answers[key] for key in order}
        cluster.invalidate()
        await asyncio.sleep(delay_s)
        attempt += 1


def not_answered(key: Hashable) -> ClientError:
    return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(key), "the broker said nothing of it")


def all_or_raise(answers: Mapping[K, T | ClientError]) -> dict[K, T]:
    """The answers, where each has one. Raises the first error."""
    found: dict[K, T] = {}
    for key, answer in answers.items():
        if isinstance(answer, ClientError):
            raise answer
        found[key] = answer
    return found


async def each(ask: Callable[[K], Awaitable[T]], wanted: Iterable[K]) -> dict[K, T | ClientError]:
    """What `ask` returns for each, all at once, or the error that it raised."""

    async def attempt(key: K) -> T | ClientError:
        try:
            return await ask(key)
        except ClientError as e:
            return e

    keys = list(wanted)
    return dict(zip(keys, await asyncio.gather(*map(attempt, keys)), strict=True))


async def of_nodes(
    nodes: Mapping[int, list[K]], ask: Callable[[int, list[K]], Awaitable[Mapping[K, T | ClientError]]]
) -> dict[K, T | ClientError]:
    """Asks several brokers at once, each for its part; a broker that fails fails its part alone."""

    async def attempt(node_id: int, part: list[K]) -> Mapping[K, T | ClientError]:
        try:
            return await ask(node_id, part)
        except ClientError as e:
            return dict.fromkeys(part, e)

    answers: dict[K, T | ClientError] = {}
    for found in await asyncio.gather(*(attempt(node_id, part) for node_id, part in nodes.items())):
        answers |= found
    return answers
