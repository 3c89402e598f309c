"""Connections to the other brokers of the cluster, opened on first use and reopened when lost.

There are up to four per broker: one for replica fetches, which wait at the leader for data, one for metrics, whose
responses can take long, one for dead letters, which wait for in-sync replicas, and one for everything else. `Peers`
implements `txn.markers.MarkerChannel`, `txn.verification.VerificationChannel`, `share.routing.ShareStateChannel`,
`share.dead_letter_logs.LetterChannel`, `control.controller.keeper.LogEnds` and `remote_lag.EndsChannel`; `FetchPeer`
implements `replica.fetcher.FetchChannel`. All raise OSError if a broker cannot be reached.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from penstock.client.connection import ClientConnection
from penstock.client.errors import ClientError
from penstock.client.security import Sasl
from penstock.config.broker import BrokerConfig
from penstock.config.listener_sasl import BrokerCredentials
from penstock.node.tcp_prober import endpoint_of
from penstock.replica.fetcher import FetchChannel, max_wait_ms
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from penstock.wire.messages.fetch import FetchRequest, FetchResponse
from penstock.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from penstock.wire.messages.produce import ProduceRequest, ProduceResponse
from penstock.wire.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from penstock.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse
from penstock.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from penstock.wire.schema import Payload

R = TypeVar("R", bound=Payload)

CONNECT_TIMEOUT_MS = 3_000.0
REQUEST_TIMEOUT_MS = 10_000.0
"""Response timeout, in addition to the time the other broker may wait."""
NEWEST_EPOCH = (1 << 31) - 1


class PeerUnreachable(ConnectionError):
    """Another broker did not respond; the message has its id and the reason."""


class PeerClient:
    """One connection to a broker, to the incarnation that the view has."""

    def __init__(
        self,
        view: ClusterView,
        broker_id: int,
        listener: str,
        tls: Callable[[], ssl.SSLContext | None],
        sasl: Callable[[], Sasl | None],
        client_id: str,
        wait_ms: float = 0.0,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self.view, self.broker_id, self.listener, self.client_id = view, broker_id, listener, client_id
        self.tls, self.sasl = tls, sasl
        self.timeout_ms = REQUEST_TIMEOUT_MS + wait_ms
        self.on_lost = on_lost
        self.connection: ClientConnection | None = None
        self.connected_to: BrokerEndpoint | None = None
        self.opening = asyncio.Lock()
        self.closed = False

    async def call(self, request: Payload, response: type[R]) -> R:
        """Send a request; requests are sent in the order of the calls. Raises `PeerUnreachable`."""
        try:
            async with self.opening:
                sent = (await self._connected()).send(request, response)
            return await sent
        except ClientError as e:
            raise PeerUnreachable(f"broker {self.broker_id}: {e}") from e

    async def _connected(self) -> ClientConnection:
        broker = self.view.brokers.get(self.broker_id)
        endpoint = endpoint_of(broker, self.listener) if broker is not None else None
        if endpoint is None or self.closed:
            raise PeerUnreachable(f"broker {self.broker_id} is not registered")
        connection = self.connection
        if connection is not None and not connection.closed and endpoint == self.connected_to:
            if not connection.expiring:
                return connection
            await self.retire()
        await self.drop()
        self.connection = await ClientConnection.open(
            endpoint.host,
            endpoint.port,
            client_id=self.client_id,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            request_timeout_ms=self.timeout_ms,
            max_used_versions={},
            tls=self.tls(),
            sasl=self.sasl(),
        )
        self.connection.on_lost = self.on_lost
        self.connected_to = endpoint
        return self.connection

    async def retire(self) -> None:
        """Close the connection once all calls on it are answered: its session ends soon (KIP-368)."""
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.retire()

    async def drop(self) -> None:
        """Close the connection; the next call opens another."""
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close for good."""
        self.closed = True
        await self.drop()


class FetchPeer:
    """Replica fetches from one broker."""

    def __init__(self, peer: PeerClient) -> None:
        self.peer = peer

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        """Send a Fetch request."""
        return await self.peer.call(request, FetchResponse)

    async def close(self) -> None:
        """Close the connection."""
        await self.peer.close()


class Peers:
    """Calls to other brokers. `listener` is the name of the listener that is used on them.

    `tls` returns the TLS context for it, None without TLS: certificates may be reloaded between two connections.
    `credentials` returns how this broker logs in there, None without SASL; it may change as well.
    """

    def __init__(
        self,
        view: ClusterView,
        config: BrokerConfig,
        listener: str,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        credentials: Callable[[], BrokerCredentials | None] = lambda: None,
    ) -> None:
        self.view, self.config, self.listener, self.tls = view, config, listener, tls
        self.credentials = credentials
        self.others: dict[tuple[int, str], PeerClient] = {}

    def sasl(self) -> Sasl | None:
        """Return the credentials for a new connection."""
        found = self.credentials()
        return None if found is None else Sasl(found.mechanism, found.username, found.password)

    def fetch_from(self, broker_id: int, on_lost: Callable[[], None]) -> FetchChannel:
        """Return a channel for replica fetches from a broker; `on_lost` is called when a connection of it breaks."""
        return FetchPeer(self._peer(broker_id, "fetch", max_wait_ms(self.config), on_lost))

    def _peer(
        self, broker_id: int, purpose: str, wait_ms: float = 0.0, on_lost: Callable[[], None] | None = None
    ) -> PeerClient:
        name = f"penstock-{purpose}-{self.config.node_id}"
        return PeerClient(self.view, broker_id, self.listener, self.tls, self.sasl, name, wait_ms, on_lost)

    async def _call(self, broker_id: int, request: Payload, response: type[R], purpose: str = "broker") -> R:
        peer = self.others.get((broker_id, purpose))
        if peer is None:
            peer = self.others[broker_id, purpose] = self._peer(broker_id, purpose)
        return await peer.call(request, response)

    async def write_markers(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Send WriteTxnMarkers."""
        return await self._call(broker_id, request, WriteTxnMarkersResponse)

    async def add_partitions(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Send AddPartitionsToTxn."""
        return await self._call(broker_id, request, AddPartitionsToTxnResponse)

    async def read_share_states(
        self, broker_id: int, request: ReadShareGroupStateRequest
    ) -> ReadShareGroupStateResponse:
        """Send ReadShareGroupState."""
        return await self._call(broker_id, request, ReadShareGroupStateResponse)

    async def write_share_states(
        self, broker_id: int, request: WriteShareGroupStateRequest
    ) -> WriteShareGroupStateResponse:
        """Send WriteShareGroupState."""
        return await self._call(broker_id, request, WriteShareGroupStateResponse)

    async def produce_letters(self, broker_id: int, request: ProduceRequest) -> ProduceResponse:
        """Send Produce on the connection for dead letters."""
        return await self._call(broker_id, request, ProduceResponse, "letters")

    async def brokers_named_by(self, broker_id: int) -> set[int]:
        """Return the ids of the brokers in another broker's Metadata."""
        answer = await self._call(broker_id, MetadataRequest(topics=[]), MetadataResponse)
        return {broker.node_id for broker in answer.brokers}

    async def list_offsets(self, broker_id: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Send ListOffsets on the connection for metrics."""
        return await self._call(broker_id, request, ListOffsetsResponse, "metrics")

    async def log_ends(
        self, broker_id: int, partitions: list[tuple[UUID, int]]
    ) -> dict[tuple[UUID, int], tuple[int, int]]:
        """Return (last leader epoch, log end offset) of the replicas that the broker knows."""
        topics: dict[UUID, OffsetForLeaderTopic] = {}
        for topic_id, index in partitions:
            topic = self.view.topics_by_id.get(topic_id)
            if topic is None:
                continue
            if topic_id not in topics:
                topics[topic_id] = OffsetForLeaderTopic(topic=topic.name, topic_id=topic_id, partitions=[])
            topics[topic_id].partitions.append(OffsetForLeaderPartition(partition=index, leader_epoch=NEWEST_EPOCH))
        request = OffsetForLeaderEpochRequest(replica_id=self.config.node_id, topics=list(topics.values()))
        answer = await self._call(broker_id, request, OffsetForLeaderEpochResponse)
        names = {topic.topic: topic_id for topic_id, topic in topics.items()}
        return {
            (names[topic.topic], p.partition): (p.leader_epoch, p.end_offset)
            for topic in answer.topics
            if topic.topic in names
            for p in topic.partitions
            if not p.error_code
        }

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(peer.close() for peer in self.others.values()))
