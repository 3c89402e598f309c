"""Looking after an etcd that is ours: its size, members and alarms, and giving space back. For the controller.

An etcd that belongs to somebody else is only ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aetcd.rpc import rpc_pb2

from penstock.state.etcd.calls import EtcdCaller, Repeatable
from penstock.state.etcd.channels import Endpoints, EtcdEndpoint
from penstock.state.store import StoreUnavailable

DEFRAGMENT_TIMEOUT_S = 60.0
"""The member serves nothing meanwhile: a second or so for each GB."""
ALARMS = {rpc_pb2.NOSPACE: "NOSPACE", rpc_pb2.CORRUPT: "CORRUPT"}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as it sees itself. Ids are etcd's; `leader_id` 0 is none."""

    url: str
    member_id: int
    version: str
    db_size_bytes: int
    """Of the file; what was compacted stays in it as free pages until it is defragmented."""
    db_in_use_bytes: int
    """As of the member's last write: right after a compaction it may still be what it was before."""
    revision: int
    leader_id: int
    is_learner: bool
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EtcdMember:
    member_id: int
    name: str
    client_urls: tuple[str, ...]
    is_learner: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Why a member (or all of etcd) refuses writes: NOSPACE or CORRUPT."""

    member_id: int
    kind: str


class EtcdMaintenance:
    """Works over the connections of a store. Each method may raise `StoreError`; `url` is one of its endpoints."""

    def __init__(self, caller: EtcdCaller, endpoints: Endpoints) -> None:
        self._caller, self._endpoints = caller, endpoints

    @property
    def urls(self) -> list[str]:
        """The endpoints that were named."""
        return [endpoint.url for endpoint in self._endpoints]

    async def status(self, url: str) -> MemberStatus:
        """Of the member at that endpoint, whoever leads. Raises `StoreUnavailable`."""
        response = await self._ask(url, lambda e: e.maintenance.Status, rpc_pb2.StatusRequest())
        return MemberStatus(
            url=url,
            member_id=response.header.member_id,
            version=response.version,
            db_size_bytes=response.dbSize,
            db_in_use_bytes=response.dbSizeInUse,
            revision=response.header.revision,
            leader_id=response.leader,
            is_learner=response.isLearner,
            errors=tuple(response.errors),
        )

    async def members(self) -> list[EtcdMember]:
        response = await self._caller.call(lambda e: e.cluster.MemberList, rpc_pb2.MemberListRequest(), repeatable=True)
        return [EtcdMember(m.ID, m.name, tuple(m.clientURLs), m.isLearner) for m in response.members]

    async def alarms(self) -> list[Alarm]:
        request = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.GET)
        response = await self._caller.call(lambda e: e.maintenance.Alarm, request, repeatable=True)
        return [Alarm(a.memberID, ALARMS.get(a.alarm, str(a.alarm))) for a in response.alarms]

    async def disarm(self, alarm: Alarm) -> None:
        """After the cause is gone: etcd does not notice by itself that it has space again."""
        kinds = {name: kind for kind, name in ALARMS.items()}
        request = rpc_pb2.AlarmRequest(
            action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=alarm.member_id, alarm=kinds[alarm.kind]
        )
        await self._caller.call(lambda e: e.maintenance.Alarm, request, repeatable=True)

    async def defragment(self, url: str) -> None:
        """Gives the free pages of one member's file back; one member at a time, since it stands still meanwhile."""
        await self._ask(url, lambda e: e.maintenance.Defragment, rpc_pb2.DefragmentRequest(), DEFRAGMENT_TIMEOUT_S)

    async def _ask(self, url: str, pick: Any, request: Any, timeout_s: float | None = None) -> Any:
        """One member, and no other in its place."""
        self._endpoints.check_open()
        endpoint: EtcdEndpoint = self._endpoints.named(url)
        try:
            return await self._caller.once(endpoint, pick, request, timeout_s)
        except Repeatable as e:
            raise StoreUnavailable(f"etcd at {url} did not answer: {e.detail}") from None
