"""Properties of a group under any sequence of member, connection, store and timer events: only the current generation
commits, and every request gets one response."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from penstock.group.phases import GroupState
from penstock.wire.errors import ErrorCode

E = ErrorCode
SESSION_MS = 6_000
REBALANCE_MS = 9_000


@dataclass
class Client:
    """State of a client; `old` holds its member ids and generations."""

    instance_id: str | None
    two_step: bool
    member_id: str = ""
    joined: object = None
    call: object = None
    syncing: bool = False
    old: list[tuple[str, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.instance_id or self.member_id


class GroupLife(RuleBasedStateMachine):
    make_group: staticmethod
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.g = self.make_group(group_initial_rebalance_delay_ms=500, group_max_size=5)
        self.all: list[Client] = []
        self.calls: list[object] = []
        self.leaders: dict[int, set[str]] = {}
        self.highest = 0

    # --- members

    @rule(target=clients, static=st.sampled_from([None, None, "i1", "i2"]), two_step=st.booleans())
    def appear(self, static, two_step):
        client = Client(static, two_step)
        self.all.append(client)
        return client

    @rule(client=clients, protocols=st.sampled_from([("x",), ("x", "y"), ("y", "x")]))
    def join(self, client, protocols):
        if client.call is not None and client.call.waits:
            return
        self.collect(client)
        client.syncing = False
        client.call = self.g.join(
            client.member_id,
            instance_id=client.instance_id,
            two_step=client.two_step,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocols=dict.fromkeys(protocols, b""),
        )
        self.calls.append(client.call)
        self.collect(client)

    @rule(client=clients)
    def sync(self, client):
        self.collect(client)
        joined = client.joined
        if joined is None or (client.call is not None and client.call.waits):
            return
        plan = None
        if joined.leader == joined.member_id and not joined.skip_assignment:
            plan = {m.member_id: f"{m.instance_id or m.member_id}@{joined.generation}".encode() for m in joined.members}
        client.call, client.syncing = self.g.sync(joined, plan, instance_id=client.instance_id), True
        self.calls.append(client.call)
        self.collect(client)

    @rule(client=clients)
    def heartbeat(self, client):
        self.collect(client)
        if client.joined is not None:
            error = self.g.heartbeat(client.joined, client.instance_id)
            if error in (E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID):
                self.forget(client)

    @rule(chosen=st.lists(clients, min_size=1, max_size=4), duration_ms=st.sampled_from([0, 500, 9000]))
    def behave(self, chosen, duration_ms):
        """Send each client's next request, as a correct client does, and advance the time."""
        for client in chosen:
            self.collect(client)
            if client.call is not None:
                continue
            if client.joined is None or client.joined.generation != self.g.group.phases.generation:
                self.join(client, ("x",))
            elif self.g.group.phases.state is GroupState.COMPLETING_REBALANCE:
                self.sync(client)
            elif self.g.heartbeat(client.joined, client.instance_id):
                self.join(client, ("x",))
        self.g.pass_ms(duration_ms)

    @rule(client=consumes(clients))
    def leave(self, client):
        self.collect(client)
        self.g.leave(client.member_id, client.instance_id)

    @rule(client=consumes(clients))
    def crash(self, client):
        if client.call is not None and client.call.waits:
            self.g.abandon(client.call)

    @rule(target=clients, client=consumes(clients))
    def lose_connection(self, client):
        if client.call is not None and client.call.waits:
            self.g.abandon(client.call)
            self.collect(client)
        return multiple(client)

    @rule(client=clients)
    def commit(self, client):
        self.collect(client)
        if client.joined is not None:
            now = self.g.group.phases.generation
            error = self.g.group.check_commit(
                client.joined.member_id, client.instance_id, client.joined.generation, self.g.now_ms
            )
            if not error:
                assert client.joined.generation == now
                assert client.joined.member_id in self.g.group.member_list.members
        for member_id, generation in client.old:
            if generation != self.g.group.phases.generation:
                refused = self.g.group.check_commit(member_id, client.instance_id, generation, self.g.now_ms)
                assert refused, "an old generation commits"

    # --- time and store

    @rule(duration_ms=st.sampled_from([100, 500, 1500, 4000, 7000, 20_000]))
    def time_passes(self, duration_ms):
        self.g.pass_ms(duration_ms)

    @rule(holds=st.booleans())
    def store_slows_down(self, holds):
        self.g.holds_persists = holds

    @rule(ok=st.sampled_from([True, True, False]))
    def store_answers(self, ok):
        self.g.release(ok)

    # --- responses

    def collect(self, client):
        if client.call is None or client.call.waits:
            return
        answer, client.call = client.call.answer, None
        if client.syncing:
            if not answer.error:
                wanted = f"{client.name}@{client.joined.generation}".encode()
                assert answer.assignment == wanted, f"{answer.assignment!r} is not of its generation: {wanted!r}"
        elif answer.error is E.MEMBER_ID_REQUIRED:
            client.member_id = answer.member_id
        elif not answer.error:
            client.member_id, client.joined = answer.member_id, answer
            client.old.append((answer.member_id, answer.generation))
            if not client.instance_id:
                self.leaders.setdefault(answer.generation, set()).add(answer.leader)
        elif answer.error is not E.REBALANCE_IN_PROGRESS:
            self.forget(client)

    def forget(self, client):
        client.member_id, client.joined = "", None

    # --- invariants

    @invariant()
    def nobody_is_answered_twice(self):
        assert all(len(call.answers) <= 1 for call in self.calls)

    @invariant()
    def generations_only_grow(self):
        assert self.g.group.phases.generation >= self.highest
        self.highest = self.g.group.phases.generation

    @invariant()
    def the_group_is_consistent(self):
        group = self.g.group
        members = list(group.member_list)
        assert len(members) <= 5 or group.phases.state is GroupState.PREPARING_REBALANCE
        assert group.member_list.joined_count == sum(m.join_waiter is not None for m in members)
        assert (not members) <= (group.phases.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE))
        if group.phases.state is GroupState.STABLE:
            assert all(m.sync_waiter is None for m in members)
            assert all(m.join_waiter is None or m.rejoin is not None for m in members)
            assert all(
                m.assignment == f"{m.instance_id or m.member_id}@{group.phases.generation}".encode() for m in members
            )
        if group.phases.state is GroupState.EMPTY:
            assert not members
        else:
            assert group.phases.wake_ms is not None or self.g.held, "a group waits for members or for the store"

    def teardown(self):
        """Check that timeouts alone answer all waiting requests and empty the group."""
        self.g.holds_persists = False
        self.g.release()
        self.g.pass_ms(400_000)
        assert not [call for call in self.calls if call.waits], "a request is still waiting"
        assert self.g.group.phases.state is GroupState.EMPTY
        assert self.g.group.phases.wake_ms is None
        assert not self.g.group.pending
        for generation, leaders in self.leaders.items():
            assert len(leaders) == 1, f"generation {generation} has the leaders {leaders}"


@pytest.mark.slow
def test_any_life_of_a_group(make_group):
    machine = type("AnyGroupLife", (GroupLife,), {"make_group": staticmethod(make_group)})
    quick = settings(
        max_examples=settings().max_examples * 3 // 2,
        stateful_step_count=60,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=quick)
