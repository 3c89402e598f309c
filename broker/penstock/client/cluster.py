"""The cluster as a client sees it: connections to its brokers, metadata that is kept fresh, requests that find their
broker and are repeated where that can help.

Producer, consumer and admin each have one, and pass it to what they are made of.
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
from penstock.client.metadata import MetadataCache, merge
from penstock.client.security import Security
from penstock.client.types import Node, TopicInfo
from penstock.config.addresses import parse_bootstrap
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.schema import Payload

T = TypeVar("T")
R = TypeVar("R", bound=Payload)
Place = int | tuple[str, int]
"""Who was asked: a broker by its id, or whoever serves an address."""

DATA, COORDINATOR = "data", "coordinator"
"""What a connection is for: group traffic must not queue behind a long poll."""
CREATION_TRIES = 8
"""How often brokers are asked for a topic that they are to create (about 4.5 s in all)."""
MANY_COORDINATORS = 4
"""The version of FindCoordinator from which one request names many groups (KIP-699)."""


class ClusterConnections:
    """Start with `start`, end with `close`; in between it may be used by many tasks.

    `metadata_max_age_ms` is how old metadata gets before it is asked for again: how soon new partitions are seen.
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
        self._asked: frozenset[str] = frozenset()
        self._connections: dict[tuple[int, str], ClientConnection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[ClientConnection]] = {}
        self._bootstrap: ClientConnection | None = None
        self._coordinators: dict[str, int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresher: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self._closed = False

    async def start(self) -> None:
        """Connects and learns of the brokers. Raises `NoBrokerAvailable` where no bootstrap address answers."""
        await self.refresh()
        self._refresher = asyncio.create_task(self._keep_fresh(), name="penstock-metadata")

    async def close(self) -> None:
        """Closes every connection. Idempotent."""
        self._closed = True
        tasks = [t for t in (self._refresher, self._refreshing, *self._opening.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in (*self._connections.values(), *filter(None, [self._bootstrap])):
            await connection.close()
        self._connections.clear()

    # Metadata

    async def refresh(self) -> None:
        """Asks for metadata now; callers that come while one is under way share it."""
        if self._closed:
            raise Closed("the client is closed")
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add_done_callback(lambda t: t.cancelled() or t.exception())
        await self._shared(self._refreshing)

    def invalidate(self) -> None:
        """Has metadata asked for again soon: somebody was told by a broker that it is out of date."""
        self._stale.set()

    def follow(self, topics: Iterable[str]) -> None:
        """Keeps these topics' metadata fresh from now on."""
        new = set(topics) - self._topics
        if new:
            self._topics |= new
            self.invalidate()

    def forget(self, topics: Iterable[str]) -> None:
        """Stops following these topics."""
        self._topics -= set(topics)

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicInfo:
        """A topic's partitions, asked for where not known, and kept fresh from then on.

        Raises `UnknownTopic` once the broker says that there is no such topic and does not create it by asking, and
        `BrokerError` for a name that is refused.
        """
        return await self.topics_known([name], timeout_ms)

    async def topics_known(self, names: Iterable[str], timeout_ms: float | None = None) -> TopicInfo:
        """As `topic`, for several at once; returns the last."""
        wanted = list(names)
        assert wanted, "no topic named"
        missing = [name for name in wanted if not self._is_kept_fresh(name)]
        if missing:
            self._topics |= set(missing)
            limit_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
            try:
                async with asyncio.timeout(limit_ms / 1000):
                    await self._find(missing)
            except TimeoutError:
                raise RequestTimedOut(f"no metadata for topic {missing[0]!r} within {limit_ms:.0f} ms") from None
        return self.metadata.topics[wanted[-1]]

    def _is_kept_fresh(self, name: str) -> bool:
        """Known, and asked for by each refresh. What a `look_up` brought may be long out of date."""
        is_followed = self.wants_all_topics or (name in self._topics and name in self._asked)
        return is_followed and self.metadata.partition_count(name) > 0

    async def _find(self, names: list[str]) -> None:
        attempt = 0
        while True:
            await self.refresh()
            missing = [name for name in names if not self._is_kept_fresh(name)]
            if not missing:
                return
            error = self.metadata.errors.get(missing[0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and attempt >= self._unknown_tries():
                self._topics.discard(missing[0])
                raise UnknownTopic(f"topic {missing[0]!r} does not exist: create it first (penstock topic create)")
            if not BrokerError(error).retriable:
                self._topics.discard(missing[0])
                raise BrokerError(error, f"topic {missing[0]!r}")
            await asyncio.sleep(self.backoff.delay_s(attempt))
            attempt += 1

    def _unknown_tries(self) -> int:
        """After how many more answers that there is no such topic that is believed: of several brokers, another one may
        not have heard yet of a topic that was created a moment ago (together 1.5 s)."""
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
                continue  # who follows no topic hears of brokers and the controller only when something went wrong
            try:
                await self.refresh()
                attempt = 0
            except ClientError:
                attempt += 1
                self._stale.set()

    async def _refresh(self) -> None:
        asked = None if self.wants_all_topics else sorted(self._topics)
        topics = None if asked is None else [MetadataRequestTopic(name=name) for name in asked]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self.auto_create_topics)
        answer = await self.call_any(request, MetadataResponse)
        if answer.error_code:
            raise BrokerError(answer.error_code, "metadata")
        self.metadata = merge(self.metadata, answer, asked)
        self._asked = frozenset(asked or ())
        for listener in self.on_metadata:
            listener(self.metadata)

    async def request_creation(self, name: str) -> None:
        """Ask the brokers to create a topic that does not exist, as a Kafka producer's metadata request does. Returns
        once the topic is created.

        Raises `UnknownTopic` if the brokers do not create topics on request (`auto.create.topics.enable`), and
        `BrokerError` if they refuse the name.
        """
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        for attempt in range(CREATION_TRIES):
            answer = await self.call_any(request, MetadataResponse)
            check(answer.error_code, "metadata")
            code = error_code(answer.topics[0].error_code) if answer.topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                return
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(code, f"topic {name!r}")
            # Apache Kafka answers so while it creates the topic, too.
            await asyncio.sleep(self.backoff.delay_s(attempt))
        raise UnknownTopic(
            f"topic {name!r} does not exist, and the brokers do not create it (auto.create.topics.enable): create it "
            "first (penstock topic create)"
        )

    async def look_up(self, topics: Iterable[str]) -> None:
        """Brings what is known of these topics up to date, once: they are not followed from then on."""
        asked = sorted(set(topics))
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in asked], allow_auto_topic_creation=False
        )
        answer = await self.call_any(request, MetadataResponse)
        check(answer.error_code, "metadata")
        self.metadata = merge(self.metadata, answer, asked)

    async def all_metadata(self) -> MetadataCache:
        """Metadata of all topics, asked for now; what is followed stays as it was."""
        answer = await self.call_any(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse)
        check(answer.error_code, "metadata")
        return merge(MetadataCache(), answer, None)

    # Connections

    async def connection(self, node_id: int, purpose: str = DATA) -> ClientConnection:
        """The connection to a broker, made where there is none. Raises `ConnectionFailed`, `NoBrokerAvailable`."""
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
                raise NoBrokerAvailable(f"broker {node_id} is not known: the metadata does not name it")
            task = self._opening[key] = asyncio.create_task(self._open(key, node))
            task.add_done_callback(lambda t: t.cancelled() or t.exception())  # who waited for it may have given up
        return await self._shared(task)

    async def _shared(self, task: asyncio.Task[T]) -> T:
        """The outcome of work that several may wait for: one who is cancelled leaves it to the others.

        Raises `Closed` where `close` ended it.
        """
        await asyncio.wait({task})
        if task.cancelled():
            raise Closed("the client is closed")
        return task.result()

    async def _open(self, key: tuple[int, str], node: Node) -> ClientConnection:
        try:
            before = self._connections.get(key)
            if before is not None and not before.closed:
                await before.retire()  # so that nothing overtakes what was sent there
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
        """A connection to whichever broker answers: one that is open, a known one, a bootstrap address."""
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
                before, self._bootstrap = self._bootstrap, found
                if before is not None and not before.closed:
                    await before.retire()
                return found
            except (AuthenticationFailed, TlsFailed):
                raise  # all brokers have the same users and authorities, and repeating it may lock the user out
            except ClientError as e:
                errors.append(str(e))
        raise NoBrokerAvailable("no broker can be reached: " + "; ".join(sorted(errors)))

    # Requests

    async def call(
        self, node_id: int, request: Payload, response: type[R], *, purpose: str = DATA, timeout_ms: float | None = None
    ) -> R:
        """One request to one broker, once."""
        connection = await self.connection(node_id, purpose)
        return await connection.call(request, response, timeout_ms=timeout_ms)

    async def call_any(self, request: Payload, response: type[R]) -> R:
        """One request to any broker."""
        return await (await self.any_connection()).call(request, response)

    async def call_everyone(self, request: Payload, response: type[R], timeout_ms: float) -> dict[Place, R]:
        """One request to each broker that is known, and to whoever serves a bootstrap address that is none of theirs,
        all at the same time: one broker alone may be out of date. The answers that came within `timeout_ms`.

        Raises `ClientError` where none came.
        """
        nodes = {(node.host, node.port): node.node_id for node in self.metadata.brokers.values()}
        asked: list[Place] = list(dict.fromkeys([*nodes.values(), *(nodes.get(a, a) for a in self.addresses)]))
        answers = await asyncio.gather(
            *(self._call_at(place, request, response, timeout_ms) for place in asked), return_exceptions=True
        )
        found: dict[Place, R] = {}
        errors: list[ClientError] = []
        for place, answer in zip(asked, answers, strict=True):
            if isinstance(answer, ClientError):
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[place] = answer
        if not found:
            raise next((e for e in errors if not e.retriable), errors[0])
        return found

    async def _call_at(self, place: Place, request: Payload, response: type[R], timeout_ms: float) -> R:
        """To an address by a connection of its own: nobody knows which broker that is."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                if isinstance(place, int):
                    return await self.call(place, request, response)
                connection = await self._connect(*place)
                try:
                    return await connection.call(request, response)
                finally:
                    await connection.close()
        except TimeoutError:
            raise RequestTimedOut(f"{place}: no answer within {timeout_ms:.0f} ms") from None

    async def call_controller(self, request: Payload, response: type[R], timeout_ms: float | None = None) -> R:
        """One request to the controller, or to any broker where none is known."""
        connection = await self.controller_connection()
        return await connection.call(request, response, timeout_ms=timeout_ms)

    async def controller_connection(self) -> ClientConnection:
        """The connection to the controller, or to any broker where none is known."""
        node_id = self.metadata.controller_id
        return await (self.connection(node_id) if node_id in self.metadata.brokers else self.any_connection())

    async def retrying(self, attempt_once: Callable[[], Awaitable[T]], timeout_ms: float | None = None) -> T:
        """Repeats `attempt_once` while it raises retriable errors, with backoff, for `timeout_ms` at most.

        The last error is raised then.
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

    async def coordinator(self, group: str) -> int:
        """The broker that coordinates a group, remembered until `forget_coordinator`. Raises `BrokerError`."""
        found = (await self.coordinators([group]))[group]
        if isinstance(found, ClientError):
            raise found
        return found

    async def coordinators(self, groups: Iterable[str]) -> dict[str, int | ClientError]:
        """As `coordinator` for many groups, in one request where the broker takes that; errors are answers. Raises
        `ClientError` where nobody can be asked."""
        answers: dict[str, int | ClientError] = {}
        unknown: list[str] = []
        for group in groups:
            node_id = self._coordinators.get(group, -1)
            if node_id in self.metadata.brokers:
                answers[group] = node_id
            else:
                unknown.append(group)
        if not unknown:
            return answers
        found = await self._find_coordinators(unknown)
        if any(node_id not in self.metadata.brokers for node_id, code, _ in found.values() if not code):
            await self.refresh()
        for group in unknown:
            node_id, code, message = found.get(group, (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE, None))
            if code:
                answers[group] = BrokerError(code, f"coordinator of group {group!r}", message)
            elif node_id not in self.metadata.brokers:
                answers[group] = BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group!r}")
            else:
                answers[group] = self._coordinators[group] = node_id
        return answers

    async def _find_coordinators(self, groups: list[str]) -> dict[str, tuple[int, int, str | None]]:
        """(node, error, message) of each group's."""
        connection = await self.any_connection()
        if connection.version(FindCoordinatorRequest) >= MANY_COORDINATORS:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=groups)
            answer = await connection.call(request, FindCoordinatorResponse)
            return {c.key: (c.node_id, c.error_code, c.error_message) for c in answer.coordinators}
        found = {}
        for group in groups:
            request = FindCoordinatorRequest(key=group, key_type=0)
            answer = await connection.call(request, FindCoordinatorResponse)
            found[group] = (answer.node_id, answer.error_code, answer.error_message)
        return found

    def forget_coordinator(self, group: str) -> None:
        """Has the coordinator looked up again: it said that it is not, or is gone."""
        self._coordinators.pop(group, None)

    async def call_coordinator(
        self,
        group: str,
        request: Payload,
        response: type[R],
        *,
        purpose: str = COORDINATOR,
        timeout_ms: float | None = None,
    ) -> R:
        """One request to a group's coordinator, once; forgets the coordinator where it cannot be reached."""
        try:
            node_id = await self.coordinator(group)
            return await self.call(node_id, request, response, purpose=purpose, timeout_ms=timeout_ms)
        except ClientError:
            self.forget_coordinator(group)
            raise
