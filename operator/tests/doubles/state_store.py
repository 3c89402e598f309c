"""An etcd in memory: a `StateStoreClient` whose members tests stop and empty.

store = InMemoryStateStore(["http://etcd-0.ns.svc:2379", ...])
store.down.add(url)          # the member does not answer
store.calls                  # the changes that were requested, such as ("remove", 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from penstock_operator.ports.brokers import ClientCertificate
from penstock_operator.ports.state_store import StateStoreError, StateStoreMember, StateStoreReport, StateStoreStatus


def peer_of(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.hostname}:2380"


class InMemoryStateStore:
    """Members have the names of the first labels of their hosts. The first member that runs is the leader."""

    def __init__(self, endpoints: Sequence[str] = ()) -> None:
        self.members: dict[str, StateStoreMember] = {}
        self.down: set[str] = set()
        self.alarms: set[str] = set()
        self.calls: list[tuple[str, object]] = []
        self.rejected = 0
        """Number of changes to reject, as etcd does in the first seconds after a change."""
        self.accesses: list[ClientCertificate | None] = []
        self.error = ""
        self.size = 20_480
        self.quota = 0
        self.leader = 0
        """Member that became the leader last; another one leads if it is down."""
        self.running: set[int] = set()
        self.is_given = bool(endpoints)
        self._ids = 0
        for endpoint in endpoints:
            self.start(endpoint)

    def start(self, endpoint: str) -> None:
        """Start a member at this endpoint, as a new one if it is not in the list."""
        peer, name = peer_of(endpoint), (urlsplit(endpoint).hostname or "").partition(".")[0]
        known = self.members.get(peer)
        self.members[peer] = StateStoreMember(
            known.member_id if known else self._next_id(),
            name,
            (peer,),
            is_learner=known is not None and known.is_learner,
        )
        self.down.discard(endpoint)

    async def observe(self, endpoints: Sequence[str], access: ClientCertificate | None) -> StateStoreReport:
        self.accesses.append(access)
        if self.error:
            raise StateStoreError(self.error)
        for endpoint in endpoints:  # an etcd of which the test says nothing
            if not self.is_given and peer_of(endpoint) not in self.members and not self.calls:
                self.start(endpoint)
        there = {e: m for e in endpoints if (m := self.members.get(peer_of(e))) and m.name and e not in self.down}
        voters = {m.member_id for m in self.members.values() if not m.is_learner}
        self.running = {m.member_id for p, m in self.members.items() if m.name and p not in map(peer_of, self.down)}
        has_quorum = len(voters & self.running) > len(voters) // 2
        if self.leader not in voters & self.running:
            self.leader = next((m.member_id for m in there.values() if not m.is_learner), 0)
        leader = self.leader if has_quorum else 0
        return StateStoreReport(
            statuses={e: StateStoreStatus(m.member_id, leader, self.size, self.quota) for e, m in there.items()},
            problems={e: f"{e}: connection refused" for e in endpoints if e not in there},
            members=tuple(self.members.values()) if has_quorum and there else None,
            members_error="" if has_quorum else "etcdserver: request timed out",
            alarms=frozenset(self.alarms),
        )

    async def remove_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        self._change(endpoint, ("remove", member_id))
        self.members = {peer: m for peer, m in self.members.items() if m.member_id != member_id}

    async def add_member(self, endpoint: str, access: ClientCertificate | None, peer_url: str) -> None:
        self._change(endpoint, ("add", peer_url))
        self.members.setdefault(peer_url, StateStoreMember(self._next_id(), "", (peer_url,), is_learner=True))

    async def promote_member(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        self._change(endpoint, ("promote", member_id))
        self.members = {
            p: replace(m, is_learner=m.is_learner and m.member_id != member_id) for p, m in self.members.items()
        }

    async def move_leader(self, endpoint: str, access: ClientCertificate | None, member_id: int) -> None:
        assert self.members[peer_of(endpoint)].member_id == self.leader, "only the leader hands over"
        self._change(endpoint, ("lead", member_id))
        self.leader = member_id

    def _change(self, endpoint: str, call: tuple[str, object]) -> None:
        if endpoint in self.down:
            raise StateStoreError(f"{endpoint}: connection refused")
        if self.rejected:
            self.rejected -= 1
            raise StateStoreError("etcdserver: unhealthy cluster")
        self.calls.append(call)

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids
