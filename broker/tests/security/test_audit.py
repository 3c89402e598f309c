"""The audit log: which events it writes, and how many."""

from __future__ import annotations

from structlog.testing import capture_logs

from penstock.security.audit import DENIAL_INTERVAL_S, MAX_LOGGED_NAMES, MAX_TRACKED_DENIALS, AuditLog
from penstock.security.principal import Principal
from penstock.wire.acl import AclOperation, ResourceType

ANA = Principal("User", "ana")
READ, WRITE, TOPIC = AclOperation.READ, AclOperation.WRITE, ResourceType.TOPIC


class AuditedTime:
    """An audit log with a clock that tests advance."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log = AuditLog(lambda: self.now_s)

    def deny(
        self, operation: AclOperation = READ, principal: Principal = ANA, name: str = "t"
    ) -> list[dict[str, object]]:
        with capture_logs() as events:
            self.log.record_denial(principal, "10.0.0.1", operation, TOPIC, name, "Fetch")
        return [dict(event) for event in events]


def test_a_denial_is_an_event_with_who_where_and_what() -> None:
    (event,) = AuditedTime().deny()
    assert event == {
        "event": "denied", "log_level": "warning", "source": "penstock.audit", "principal": "User:ana",
        "host": "10.0.0.1", "operation": "READ", "resource_type": "TOPIC", "resource": "t", "request": "Fetch",
        "suppressed": 0,
    }  # fmt: skip


def test_repeated_denials_of_a_principal_and_operation_are_counted_and_reported_with_the_next_event() -> None:
    time = AuditedTime()
    assert len(time.deny()) == 1
    assert [time.deny() for _ in range(5)] == [[]] * 5
    assert len(time.deny(WRITE)) == 1
    assert len(time.deny(principal=Principal("User", "bob"))) == 1
    time.now_s = DENIAL_INTERVAL_S
    (event,) = time.deny()
    assert event["suppressed"] == 5
    assert time.log.denials == {(READ, TOPIC): 8, (WRITE, TOPIC): 1}


def test_memory_is_bounded_whatever_principals_come() -> None:
    time = AuditedTime()
    for number in range(MAX_TRACKED_DENIALS + 10):
        time.deny(principal=Principal("User", str(number)))
    assert len(time.log.recent) == MAX_TRACKED_DENIALS


def test_long_names_are_cut() -> None:
    (event,) = AuditedTime().deny(name="n" * 10_000)
    assert event["resource"] == "n" * 249


def test_an_administrative_action_is_an_event_with_its_outcome() -> None:
    with capture_logs() as events:
        AuditedTime().log.record_action(ANA, "10.0.0.1", "CreateTopics", ["a"] * 30, ["POLICY_VIOLATION"])
    (event,) = events
    assert (event["principal"], event["operation"], event["outcome"]) == (
        "User:ana",
        "CreateTopics",
        "POLICY_VIOLATION",
    )
    assert (event["resources"], event["resource_count"]) == (["a"] * MAX_LOGGED_NAMES, 30)
