"""The maintenance API of etcd: status, members, alarms, defragmentation. Used by the controller.

An etcd that Penstock does not manage is only read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aetcd.rpc import rpc_pb2

from penstock.state.etcd.calls import EtcdCaller, RetriableFailure
from penstock.state.etcd.channels import Endpoints, EtcdEndpoint
from penstock.state.store import StoreUnavailable

DEFRAGMENT_TIMEOUT_S = 60.0
"""The member does not serve meanwhile: about a second per GB."""
ALARMS = {rpc_pb2.NOSPACE: "NOSPACE", rpc_pb2.CORRUPT: "CORRUPT"}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """The status of one member, as it reports itself. Ids are etcd's; `leader_id` 0 is none."""

    url: str
    member_id: int
    version: str
    db_size_bytes: int
    """Size of the file; compacted pages stay in it until it is defragmented."""
    db_in_use_bytes: int
    """As of the member's last write: right after a compaction it may be outdated."""
    revision: int
    leader_id: int
    is_learner: bool
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """A member of the etcd cluster."""

    member_id: int
    name: str
    client_urls: tuple[str, ...]
    is_learner: bool


@dataclass(frozen=True, slots=True)
class Alarm:
    """Why a member, or all of etcd, refuses writes: NOSPACE or CORRUPT."""

    member_id: int
    kind: str


class EtcdMaintenance:
    """Uses the connections of a store. Each method can raise `StoreError`; `url` is one of its endpoints."""

    def __init__(self, caller: EtcdCaller, endpoints: Endpoints) -> None:
        self._caller, self._endpoints = caller, endpoints

    @property
    def urls(self) -> list[str]:
        """The configured endpoints."""
        return [endpoint.url for endpoint in self._endpoints]

    async def status(self, url: str) -> MemberStatus:
        """Return the status of the member at that endpoint. Raises `StoreUnavailable`."""
        response = await self._call_member(url, lambda e: e.maintenance.Status, rpc_pb2.StatusRequest())
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
        """Return the members of the etcd cluster."""
        response = await self._caller.call(lambda e: e.cluster.MemberList, rpc_pb2.MemberListRequest(), repeatable=True)
        return [EtcdMember(m.ID, m.name, tuple(m.clientURLs), m.isLearner) for m in response.members]

    async def alarms(self) -> list[Alarm]:
        """Return the raised alarms."""
        request = rpc_pb2.AlarmRequest(action=rpc_pb2.AlarmRequest.GET)
        response = await self._caller.call(lambda e: e.maintenance.Alarm, request, repeatable=True)
        return [Alarm(a.memberID, ALARMS.get(a.alarm, str(a.alarm))) for a in response.alarms]

    async def disarm(self, alarm: Alarm) -> None:
        """Clear an alarm after its cause is removed: etcd does not do it by itself."""
        kinds = {name: kind for kind, name in ALARMS.items()}
        request = rpc_pb2.AlarmRequest(
            action=rpc_pb2.AlarmRequest.DEACTIVATE, memberID=alarm.member_id, alarm=kinds[alarm.kind]
        )
        await self._caller.call(lambda e: e.maintenance.Alarm, request, repeatable=True)

    async def defragment(self, url: str) -> None:
        """Defragment one member, which does not serve meanwhile; call it for one member at a time."""
        await self._call_member(
            url, lambda e: e.maintenance.Defragment, rpc_pb2.DefragmentRequest(), DEFRAGMENT_TIMEOUT_S
        )

    async def _call_member(self, url: str, pick: Any, request: Any, timeout_s: float | None = None) -> Any:
        """Call this member and no other."""
        self._endpoints.check_open()
        endpoint: EtcdEndpoint = self._endpoints.by_url(url)
        try:
            return await self._caller.call_endpoint(endpoint, pick, request, timeout_s)
        except RetriableFailure as e:
            raise StoreUnavailable(f'etcd at "{url}" did not respond: {e.detail}') from None
