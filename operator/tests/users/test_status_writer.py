"""The operator recognises its own status writes, so that it does not query the brokers again because of them."""

from __future__ import annotations

import msgspec
import pytest
from doubles.kube import FakeKube

from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.parse import parse
from penstock_operator.model.user import User, UserStatus
from penstock_operator.ports.kube import USERS
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.users.observation import UserObservation
from penstock_operator.users.status_writer import ECHO_WINDOW_S, UserStatusWriter

KEY = ObjectKey("User", "ns", "ana")


class Clock:
    now_s = 0.0


async def published() -> tuple[UserStatusWriter, User, Clock]:
    """Return a writer that has just written a status, and the object with it."""
    kube, clock = FakeKube(), Clock()
    body = kube.put(USERS, {"metadata": {"name": "ana", "namespace": "ns"}, "spec": {"clusterRef": {"name": "c"}}})
    writer = UserStatusWriter(kube, lambda: clock.now_s, lambda: "2026-01-01T00:00:00Z")
    observation = UserObservation(KEY, "User:ana", parse("User", body), body)
    observation.plan, observation.requeue_after_s = ReconcilePlan(UserStatus(acls=3)), 7.0
    assert await writer.publish(observation) == ReconcileResult(7.0)
    return writer, parse("User", kube.read(USERS, "ns", "ana") or {}), clock


async def test_an_own_write_gives_the_previous_result_once() -> None:
    writer, user, _ = await published()
    assert writer.echo(KEY, user) == ReconcileResult(7.0)
    assert writer.echo(KEY, user) is None


@pytest.mark.parametrize("change", ["annotations", "generation", "status", "time", "forget"])
async def test_any_other_change_is_reconciled(change: str) -> None:
    writer, user, clock = await published()
    if change == "annotations":
        user = msgspec.structs.replace(user, metadata=msgspec.structs.replace(user.metadata, annotations={"a": "b"}))
    elif change == "generation":
        user = msgspec.structs.replace(user, metadata=msgspec.structs.replace(user.metadata, generation=9))
    elif change == "status":
        user = msgspec.structs.replace(user, status=UserStatus(acls=4))
    elif change == "time":
        clock.now_s += ECHO_WINDOW_S
    else:
        writer.forget(KEY)
    assert writer.echo(KEY, user) is None
