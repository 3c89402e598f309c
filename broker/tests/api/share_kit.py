"""Members of share groups that are connected to a broker, without sockets; the broker itself is a real one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

from authorized_broker import HOST, ROOT, AuthorizedBroker, AuthorizedClient, opened_broker
from log_kit import headers_in
from replica_kit import accepted, batch_of, until
from wire_in_memory import RecordedConnection, RecordedExchange

from penstock.api.exchange import PeerInfo
from penstock.replica.leader import Leader
from penstock.security.principal import Principal
from penstock.share.acknowledgement import AckType
from penstock.state import keys
from penstock.state.records import GroupSettingsRecord, encode
from penstock.state.store import PutOp
from penstock.wire.messages import share_acknowledge, share_fetch
from penstock.wire.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from penstock.wire.messages.share_fetch import ForgottenTopic, PartitionData, ShareFetchRequest, ShareFetchResponse
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

CONNECTIONS = itertools.count(100)
LONG_MS = 60_000
"""A wait that is longer than any test."""
MUCH = 1 << 20
ACCEPT, RELEASE, REJECT, RENEW = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW
Acks = dict[str, list[tuple[int, int, list[int]]]]


@contextlib.asynccontextmanager
async def opened_share_broker(home: Path) -> AsyncIterator[AuthorizedBroker]:
    """Run a broker with the topics "t" and "u", whose share group "g" starts with the first record."""
    async with opened_broker(home) as opened:
        await opened.create_topics("t", "u")
        await configure(opened, auto_offset_reset="earliest")
        yield opened


class ShareMember(AuthorizedClient):
    """A member with a connection of its own. Topics have one partition; `epoch` is that of the next request."""

    def __init__(
        self, broker: AuthorizedBroker, member: str = "m1", group: str = "g", principal: Principal = ROOT
    ) -> None:
        super().__init__(broker, principal)
        self.connection = RecordedConnection(PeerInfo(next(CONNECTIONS), broker.listener, HOST, 5, principal))
        self.member, self.group, self.epoch = member, group, 0
        joining = ShareGroupHeartbeatRequest(group_id=group, member_id=member, subscribed_topic_names=["t"])
        broker.client(ROOT).send(joining, 1)

    def id_of(self, topic: str | UUID) -> UUID:
        return topic if isinstance(topic, UUID) else self.broker.topic_id(topic)

    def count_epoch(self, epoch: int | None) -> int:
        sent = self.epoch if epoch is None else epoch
        self.epoch = 0 if sent < 0 else sent + 1
        return sent

    def start(
        self, *topics: str | UUID, acks: Acks | None = None, epoch: int | None = None, **more: Any
    ) -> RecordedExchange:
        """Send a ShareFetch that adds topics to the session. `again` are acknowledgements of topics that the request
        names a second time."""
        again: Acks = more.pop("again", {})
        named: dict[UUID, list[share_fetch.AcknowledgementBatch]] = {self.id_of(topic): [] for topic in topics}
        for topic, batches in (acks or {}).items():
            named[self.id_of(topic)] = [share_fetch.AcknowledgementBatch(*batch) for batch in batches]
        forgotten = [ForgottenTopic(self.id_of(topic), [0]) for topic in more.pop("forget", ())]
        version = more.pop("version", 2)
        fields = {"max_wait_ms": LONG_MS, "min_bytes": 1, "max_bytes": MUCH, "max_records": 500, **more}
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.count_epoch(epoch),
            topics=[
                share_fetch.FetchTopic(each, [share_fetch.FetchPartition(0, batches)])
                for each, batches in [
                    *named.items(),
                    *(
                        (self.id_of(topic), [share_fetch.AcknowledgementBatch(*batch) for batch in batches])
                        for topic, batches in again.items()
                    ),
                ]
            ],
            forgotten_topics_data=forgotten,
            **fields,
        )
        return self.send(request, version)

    async def fetch(self, *topics: str | UUID, **more: Any) -> ShareFetchResponse:
        """Send a ShareFetch and wait for its response."""
        return await self.answer(self.start(*topics, **more), more.get("version", 2))

    async def answer(self, exchange: RecordedExchange, version: int = 2) -> ShareFetchResponse:
        await until(lambda: exchange.completed)
        return self.decoded(exchange, ShareFetchResponse, version)

    def start_acknowledge(self, acks: Acks, *, epoch: int | None = None, **more: Any) -> RecordedExchange:
        """Send a ShareAcknowledge; `again` as for `start`."""
        again: Acks = more.pop("again", {})
        topics = [
            share_acknowledge.AcknowledgeTopic(
                self.id_of(topic),
                [
                    share_acknowledge.AcknowledgePartition(
                        0, [share_acknowledge.AcknowledgementBatch(*batch) for batch in batches]
                    )
                ],
            )
            for topic, batches in [*acks.items(), *again.items()]
        ]
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member,
            share_session_epoch=self.count_epoch(epoch),
            topics=topics,
            **more,
        )
        return self.send(request, 2)

    async def acknowledge(self, acks: Acks, **more: Any) -> ShareAcknowledgeResponse:
        """Send a ShareAcknowledge and wait for its response."""
        exchange = self.start_acknowledge(acks, **more)
        await until(lambda: exchange.completed)
        return self.decoded(exchange, ShareAcknowledgeResponse, 2)

    async def close(self) -> ShareFetchResponse:
        return await self.fetch(epoch=-1, max_wait_ms=0)

    def lose(self) -> None:
        """Lose the connection."""
        self.connection.lose()


def partition(response: ShareFetchResponse) -> PartitionData:
    """Return the only partition of a response."""
    assert not response.error_code, response
    ((found,),) = [topic.partitions for topic in response.responses]
    return found


def acquired(response: ShareFetchResponse) -> list[tuple[int, int, int]]:
    """Return (first offset, last offset, delivery count) of what the member holds."""
    assert not response.error_code, response
    found = [p for topic in response.responses for p in topic.partitions]
    assert not any(p.error_code for p in found), found
    return [(a.first_offset, a.last_offset, a.delivery_count) for p in found for a in p.acquired_records]


def batches_in(data: PartitionData) -> list[tuple[int, int]]:
    """Return (first, last offset) of the batches."""
    return [(h.base_offset, h.last_offset) for h in headers_in(bytes(data.records or b""))]


def ack_error(response: ShareAcknowledgeResponse) -> int:
    """Return the error of the only partition."""
    assert not response.error_code, response
    ((found,),) = [topic.partitions for topic in response.responses]
    return found.error_code


def leader_of(broker: AuthorizedBroker, topic: str = "t") -> Leader:
    found = broker.services.replicas.find(topic, 0)
    assert found is not None
    return found


async def append(broker: AuthorizedBroker, *counts: int, topic: str = "t", **more: Any) -> None:
    """Append one batch per size, and wait until they are committed."""
    leader = leader_of(broker, topic)
    for count in counts:
        accepted(leader, batch_of(count, **more))
    await until(lambda: leader.high_watermark == leader.log.end_offset)


async def configure(broker: AuthorizedBroker, group: str = "g", **settings: str) -> None:
    """Store the settings of a group, with underscores instead of dots."""
    named = {f"share.{name.replace('_', '.')}": text for name, text in settings.items()}
    record = encode(GroupSettingsRecord(settings=named))
    await broker.services.store.txn([], [PutOp(keys.group_settings(group), record)])
