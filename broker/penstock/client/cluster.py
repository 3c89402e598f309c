"""A client's view of the cluster: connections, fresh metadata, and requests that are routed and retried.

Each producer, consumer and admin client has one and shares it with its components.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from penstock.client.backoff import Backoff
from penstock.client.connection import MAX_RESPONSE_BYTES, ClientConnection
from penstock.client.errors import (
    AuthenticationFailed,
    BrokerError,
    ClientError,
    Closed,
    NoBrokerAvailable,
    RequestTimedOut,
    TlsFailed,
    UnknownTopic,
    check,
    error_code,
)
from penstock.client.metadata import MetadataCache, merge_metadata
from penstock.client.security import Security
from penstock.client.types import Node, TopicInfo
from penstock.config.addresses import parse_bootstrap
from penstock.runtime.tasks import spawn
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.schema import Payload

T = TypeVar("T")
R = TypeVar("R", bound=Payload)
BrokerRef = int | tuple[str, int]
"""A broker by id, or by the address of a bootstrap server whose id is unknown."""

DATA, COORDINATOR = "data", "coordinator"
"""Purpose of a connection: requests to coordinators must not queue behind a long poll."""
GROUP, TRANSACTION = 0, 1
"""Key types of FindCoordinator: group ids and transactional ids."""
KEY_NAMES = {GROUP: "group", TRANSACTION: "transactional id"}
MAX_CREATION_ATTEMPTS = 8
"""Metadata requests while a topic is created automatically, about 4.5 s in total."""
BATCHED_COORDINATORS_VERSION = 4
"""First version of FindCoordinator that supports many groups per request (KIP-699)."""


class ClusterConnections:
    """Connections and metadata of a cluster. Call `start` before and `close` after use; safe for concurrent tasks.

    `metadata_max_age_ms` is the refresh interval of metadata, and thus the delay until new partitions are found.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "penstock",
        request_timeout_ms: float = 30_000,
        connect_timeout_ms: float = 10_000,
        metadata_max_age_ms: float = 60_000,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        backoff: Backoff | None = None,
        auto_create_topics: bool = False,
        security: Security | None = None,
    ) -> None:
        has_tls = security is not None and security.tls is not None
        has_sasl = security is not None and security.sasl is not None
        self.addresses = parse_bootstrap(bootstrap, has_tls=has_tls, has_sasl=has_sasl)
        self.client_id = client_id
        self.request_timeout_ms = request_timeout_ms
        self.connect_timeout_ms = connect_timeout_ms
        self.metadata_max_age_ms = metadata_max_age_ms
        self.max_response_bytes = max_response_bytes
        self.backoff = backoff or Backoff()
        self.auto_create_topics = auto_create_topics
        self._sasl = security.sasl if security is not None else None
        self._tls = security.tls.context() if security is not None and security.tls is not None else None
        self.metadata = MetadataCache()
        self.wants_all_topics = False
        self.on_metadata: list[Callable[[MetadataCache], None]] = []
        self._topics: set[str] = set()
        self._refreshed: frozenset[str] = frozenset()
        self._connections: dict[tuple[int, str], ClientConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[ClientConnection]] = {}
        self._bootstrap: ClientConnection | None = None
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Connect and fetch metadata. Raises `NoBrokerAvailable` if no bootstrap server responds."""
        await self.refresh()
        self._refresher = spawn(self._keep_fresh(), "penstock-metadata")

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed = True
        tasks = [t for t in (self._refresher, self._refreshing, *self._opening.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in (*self._connections.values(), *filter(None, [self._bootstrap])):
            await connection.close()
        self._connections.clear()

    async def refresh(self) -> None:
        """Fetch metadata now. Concurrent callers share one request."""
        if self._closed:
            raise Closed("the client is closed")
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(lambda t: t.cancelled() or t.exception())
        await self._shared(self._refreshing)

    def invalidate(self) -> None:
        """Schedule a metadata refresh, because a broker reported that metadata is out of date."""
        self._stale.set()

    def follow(self, topics: Iterable[str]) -> None:
        """Keep the metadata of these topics fresh."""
        new = set(topics) - self._topics
        if new:
            self._topics |= new
            self.invalidate()

    def forget(self, topics: Iterable[str]) -> None:
        """Stop refreshing these topics."""
        self._topics -= set(topics)

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicInfo:
        """Return a topic, fetched if unknown and refreshed from then on.

        Raises `UnknownTopic` if the topic does not exist and is not created automatically, and `BrokerError` for an
        invalid name.
        """
        return await self.fetch_topics([name], timeout_ms)

    async def fetch_topics(self, names: Iterable[str], timeout_ms: float | None = None) -> TopicInfo:
        """Fetch several topics as `topic` does; return the last one."""
        topic_names = list(names)
        assert topic_names, "no topic named"
        missing = [name for name in topic_names if not self._is_kept_fresh(name)]
        if missing:
            self._topics |= set(missing)
            limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await self._find(missing)
            except TimeoutError:
                raise RequestTimedOut(f'no metadata for topic "{missing[0]}" within {limit_ms:.0f} ms') from None
        return self.metadata.topics[topic_names[-1]]

    def _is_kept_fresh(self, name: str) -> bool:
        """Return whether a topic is known and part of each refresh. `update_topics` does not keep topics fresh."""
        is_followed = self.wants_all_topics or (name in self._topics and name in self._refreshed)
        return is_followed and self.metadata.partition_count(name) > 0

    async def _find(self, names: list[str]) -> None:
        attempt = 0
        while True:
            await self.refresh()
            missing = [name for name in names if not self._is_kept_fresh(name)]
            if not missing:
                return
            error = self.metadata.errors.get(missing[0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempt >= self._max_unknown_attempts():
                self._topics.discard(missing[0])
                raise UnknownTopic(f'topic "{missing[0]}" does not exist; create it with `penstock topic create`')
            if not BrokerError(error).retriable:
                self._topics.discard(missing[0])
                raise BrokerError(error, f'topic "{missing[0]}"')
            await asyncio.sleep(self.backoff.delay_s(attempt))
            attempt += 1

    def _max_unknown_attempts(self) -> int:
        """Return after how many retries an unknown topic is reported: another broker may not know a new topic yet (1.5
        s in total).
        """
        return 5 if len(self.metadata.brokers) > 1 else 3 if self.auto_create_topics else 1

    async def _keep_fresh(self) -> None:
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(self.metadata_max_age_ms / 1000):
                    await self._stale.wait()
                await asyncio.sleep(self.backoff.delay_s(min(attempt, 2)))
            except TimeoutError:
                pass
            is_stale = self._stale.is_set()
            self._stale.clear()
            if not is_stale and not self._topics and not self.wants_all_topics:
                continue  # without topics, refresh only after errors
            try:
                await self.refresh()
                attempt = 0
            except ClientError:
                attempt += 1
                self._stale.set()

    async def _refresh(self) -> None:
        requested = None if self.wants_all_topics else sorted(self._topics)
        topics = None if requested is None else [MetadataRequestTopic(name=name) for name in requested]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self.auto_create_topics)
        reply = await self.call_any(request, MetadataResponse)
        if reply.error_code:
            raise BrokerError(reply.error_code, "metadata")
        self.metadata = merge_metadata(self.metadata, reply, requested)
        self._refreshed = frozenset(requested or ())
        for listener in self.on_metadata:
            listener(self.metadata)

    async def request_creation(self, name: str) -> None:
        """Create a missing topic through a metadata request, as Kafka producers do. Returns once it is created.

        Raises `UnknownTopic` if brokers do not create topics automatically (`auto.create.topics.enable`), and
        `BrokerError` if they reject the name.
        """
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        for attempt in range(MAX_CREATION_ATTEMPTS):
            reply = await self.call_any(request, MetadataResponse)
            check(reply.error_code, "metadata")
            code = error_code(reply.topics[0].error_code) if reply.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                return
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(code, f'topic "{name}"')
            # Apache Kafka also returns this error while it creates the topic.
            await asyncio.sleep(self.backoff.delay_s(attempt))
        raise UnknownTopic(
            f'topic "{name}" does not exist and is not created automatically (auto.create.topics.enable); create it'
            " with `penstock topic create`"
        )

    async def update_topics(self, topics: Iterable[str]) -> None:
        """Fetch the metadata of these topics once, without keeping it fresh."""
        names = sorted(set(topics))
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
        )
        reply = await self.call_any(request, MetadataResponse)
        check(reply.error_code, "metadata")
        self.metadata = merge_metadata(self.metadata, reply, names)

    async def all_metadata(self) -> MetadataCache:
        """Fetch and return the metadata of all topics; the cache does not change."""
        reply = await self.call_any(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse)
        check(reply.error_code, "metadata")
        return merge_metadata(MetadataCache(), reply, None)

    async def connection(self, node_id: int, purpose: str = DATA) -> ClientConnection:
        """Return the connection to a broker, opened if needed. Raises `ConnectionFailed`, `NoBrokerAvailable`."""
        if self._closed:
            raise Closed("the client is closed")
        key = (node_id, purpose)
        connection = self._connections.get(key)
        if connection is not None and not connection.closed and not connection.expiring:
            return connection
        task = self._opening.get(key)
        if task is None:
            node = self.metadata.brokers.get(node_id)
            if node is None:
                raise NoBrokerAvailable(f"broker {node_id} is unknown: it is not in the cluster's metadata")
            task = self._opening[key] = asyncio.create_task(self._open(key, node))
            task.add_done_callback(
                lambda t: t.cancelled() or t.exception()
            )  # mark as retrieved: all waiters may have been cancelled
        return await self._shared(task)

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """Return the result of a task shared by several waiters; cancelling one waiter does not cancel the task.

        Raises `Closed` if `close` cancelled it.
        """
        await asyncio.wait({task})
        if task.cancelled():
            raise Closed("the client is closed")
        return task.result()

    async def _open(self, key: tuple[int, str], node: Node) -> ClientConnection:
        try:
            previous = self._connections.get(key)
            if previous is not None and not previous.closed:
                await previous.retire()  # so that new requests do not overtake pending ones
            connection = self._connections[key] = await self._connect(node.host, node.port)
            return connection
        except ClientError:
            self.invalidate()
            raise
        finally:
            del self._opening[key]

    async def _connect(self, host: str, port: int) -> ClientConnection:
        return await ClientConnection.open(
            host,
            port,
            client_id=self.client_id,
            connect_timeout_ms=self.connect_timeout_ms,
            request_timeout_ms=self.request_timeout_ms,
            max_response_bytes=self.max_response_bytes,
            tls=self._tls,
            sasl=self._sasl,
        )

    async def any_connection(self) -> ClientConnection:
        """Return a connection to any reachable broker: an open one, a known broker, a bootstrap server."""
        if self._closed:
            raise Closed("the client is closed")
        for connection in (self._bootstrap, *self._connections.values()):
            if connection is not None and not connection.closed and not connection.expiring:
                return connection
        known = [(node.host, node.port) for node in self.metadata.brokers.values()]
        random.shuffle(known)
        errors = []
        for host, port in dict.fromkeys([*known, *self.addresses]):
            try:
                found = await self._connect(host, port)
                previous, self._bootstrap = self._bootstrap, found
                if previous is not None and not previous.closed:
                    await previous.retire()
                return found
            except (AuthenticationFailed, TlsFailed):
                raise  # the same for all brokers; repeated attempts may lock the user out
            except ClientError as e:
                errors.append(str(e))
        raise NoBrokerAvailable("no broker is reachable: " + "; ".join(sorted(errors)))

    async def call(
        self,
        node_id: int,
        request: Payload,
        response: type[R],
        *,
        purpose: str = DATA,
        timeout_ms: float | None = None,
        newest: int | None = None,
    ) -> R:
        """Send one request to one broker, without retries. `newest` is as in `ClientConnection.version`."""
        connection = await self.connection(node_id, purpose)
        return await connection.call(request, response, timeout_ms=timeout_ms, newest=newest)

    async def call_any(self, request: Payload, response: type[R]) -> R:
        """Send one request to any broker."""
        return await (await self.any_connection()).call(request, response)

    async def call_all(self, request: Payload, response: type[R], timeout_ms: float) -> dict[BrokerRef, R]:
        """Send a request concurrently to all known brokers and to bootstrap servers that are none of them, as a single
        broker may be out of date. Returns the responses received within `timeout_ms`.

        Raises `ClientError` if there is none.
        """
        nodes = {(node.host, node.port): node.node_id for node in self.metadata.brokers.values()}
        targets: list[BrokerRef] = list(dict.fromkeys([*nodes.values(), *(nodes.get(a, a) for a in self.addresses)]))
        responses = await asyncio.gather(
            *(self._call_at(target, request, response, timeout_ms) for target in targets), return_exceptions=True
        )
        found: dict[BrokerRef, R] = {}
        errors: list[ClientError] = []
        for target, reply in zip(targets, responses, strict=True):
            if isinstance(reply, ClientError):
                errors.append(reply)
            elif isinstance(reply, BaseException):
                raise reply
            else:
                found[target] = reply
        if not found:
            raise next((e for e in errors if not e.retriable), errors[0])
        return found

    async def _call_at(self, target: BrokerRef, request: Payload, response: type[R], timeout_ms: float) -> R:
        """Send a request; to an address through a separate connection, as the broker's id is unknown."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if isinstance(target, int):
                    return await self.call(target, request, response)
                connection = await self._connect(*target)
                try:
                    return await connection.call(request, response)
                finally:
                    await connection.close()
        except TimeoutError:
            raise RequestTimedOut(f"{target}: no answer within {timeout_ms:.0f} ms") from None

    async def call_controller(self, request: Payload, response: type[R], timeout_ms: float | None = None) -> R:
        """Send one request to the controller, or to any broker if none is known."""
        connection = await self.controller_connection()
        return await connection.call(request, response, timeout_ms=timeout_ms)

    async def controller_connection(self) -> ClientConnection:
        """Return the connection to the controller, or to any broker if none is known."""
        node_id = self.metadata.controller_id
        return await (self.connection(node_id) if node_id in self.metadata.brokers else self.any_connection())

    async def retrying(self, attempt_once: Callable[[], Awaitable[T]], timeout_ms: float | None = None) -> T:
        """Repeat `attempt_once` with backoff while it raises retriable errors, for up to `timeout_ms`.

        Then raises the last error.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.request_timeout_ms if timeout_ms is None else timeout_ms) / 1000
        attempt = 0
        while True:
            try:
                return await attempt_once()
            except ClientError as e:
                delay_s = self.backoff.delay_s(attempt)
                if not e.retriable or loop.time() + delay_s >= deadline:
                    raise
                self.invalidate()
                await asyncio.sleep(delay_s)
                attempt += 1

    async def coordinator(self, key: str, key_type: int = GROUP) -> int:
        """Return the broker that coordinates a group or a transactional id, cached until `forget_coordinator`.

        Raises `BrokerError`.
        """
        found = (await self.coordinators([key], key_type))[key]
        if isinstance(found, ClientError):
            raise found
        return found

    async def coordinators(self, keys: Iterable[str], key_type: int = GROUP) -> dict[str, int | ClientError]:
        """Return the coordinators of many keys, in one request if the broker supports that. Errors are returned.

        Raises `ClientError` if no broker is reachable.
        """
        responses: dict[str, int | ClientError] = {}
        unknown: list[str] = []
        for key in keys:
            node_id = self._coordinators.get((key_type, key), -1)
            if node_id in self.metadata.brokers:
                responses[key] = node_id
            else:
                unknown.append(key)
        if not unknown:
            return responses
        found = await self._find_coordinators(unknown, key_type)
        if any(node_id not in self.metadata.brokers for node_id, code, _ in found.values() if not code):
            await self.refresh()
        for key in unknown:
            about = f'coordinator of {KEY_NAMES[key_type]} "{key}"'
            node_id, code, message = found.get(key, (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE, None))
            if code:
                responses[key] = BrokerError(code, about, message)
            elif node_id not in self.metadata.brokers:
                responses[key] = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, about)
            else:
                responses[key] = self._coordinators[key_type, key] = node_id
        return responses

    async def _find_coordinators(self, keys: list[str], key_type: int) -> dict[str, tuple[int, int, str | None]]:
        """Return (node, error, message) of each key."""
        connection = await self.any_connection()
        if connection.version(FindCoordinatorRequest) >= BATCHED_COORDINATORS_VERSION:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            reply = await connection.call(request, FindCoordinatorResponse)
            return {c.key: (c.node_id, c.error_code, c.error_message) for c in reply.coordinators}
        found = {}
        for key in keys:
            request = FindCoordinatorRequest(key=key, key_type=key_type)
            reply = await connection.call(request, FindCoordinatorResponse)
            found[key] = (reply.node_id, reply.error_code, reply.error_message)
        return found

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        """Look up the coordinator again: it has moved or failed."""
        self._coordinators.pop((key_type, key), None)

    async def call_coordinator(
        self,
        key: str,
        request: Payload,
        response: type[R],
        *,
        key_type: int = GROUP,
        purpose: str = COORDINATOR,
        timeout_ms: float | None = None,
        newest: int | None = None,
    ) -> R:
        """Send one request to a coordinator; forget the coordinator if that fails."""
        try:
            node_id = await self.coordinator(key, key_type)
            return await self.call(node_id, request, response, purpose=purpose, timeout_ms=timeout_ms, newest=newest)
        except ClientError:
            self.forget_coordinator(key, key_type)
            raise
