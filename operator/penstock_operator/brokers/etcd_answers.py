"""Parses the responses of etcd's JSON API. Used by `etcd_client`.

Responses are bounded and typed: an etcd that is not the release's own may be any program.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock_operator.ports.state_store import (
    CORRUPT,
    NOSPACE,
    StateStoreError,
    StateStoreMember,
    StateStoreStatus,
)

MAX_MEMBERS = 64
MAX_TEXT_CHARS = 300
MAX_ID = (1 << 64) - 1
T = TypeVar("T")


class _Header(msgspec.Struct, frozen=True):
    member_id: int = 0


class _Status(msgspec.Struct, frozen=True):
    header: _Header = _Header()
    leader: int = 0
    db_size: int = msgspec.field(name="dbSize", default=0)
    db_quota: int = msgspec.field(name="dbSizeQuota", default=0)
    errors: list[str] = []


class _Member(msgspec.Struct, frozen=True):
    member_id: int = msgspec.field(name="ID", default=0)
    name: str = ""
    peer_urls: list[str] = msgspec.field(name="peerURLs", default_factory=list)
    is_learner: bool = msgspec.field(name="isLearner", default=False)


class _MemberList(msgspec.Struct, frozen=True):
    members: list[_Member] = []


class _Alarm(msgspec.Struct, frozen=True):
    alarm: str = ""


class _AlarmList(msgspec.Struct, frozen=True):
    alarms: list[_Alarm] = []


class _Failure(msgspec.Struct, frozen=True):
    message: str = ""
    error: str = ""


def status(body: bytes) -> StateStoreStatus:
    """Parse a StatusResponse. Raises `StateStoreError`."""
    found = decode(body, _Status)
    numbers = (found.header.member_id, found.leader, found.db_size, found.db_quota)
    if not 0 < found.header.member_id <= MAX_ID or not all(0 <= number <= MAX_ID for number in numbers):
        raise invalid(f"numbers are out of range: {numbers}")
    errors = tuple(shortened(error) for error in found.errors[:MAX_MEMBERS])
    return StateStoreStatus(found.header.member_id, found.leader, found.db_size, found.db_quota, errors)


def members(body: bytes) -> tuple[StateStoreMember, ...]:
    """Parse a MemberListResponse. Raises `StateStoreError`."""
    found = decode(body, _MemberList).members
    if not 0 < len(found) <= MAX_MEMBERS:
        raise invalid(f"expected 1 to {MAX_MEMBERS} members, got {len(found)}")
    for member in found:
        if not 0 < member.member_id <= MAX_ID or len(member.peer_urls) > MAX_MEMBERS:
            raise invalid(f"member {member.member_id} is out of range")
    return tuple(
        StateStoreMember(m.member_id, shortened(m.name), tuple(map(shortened, m.peer_urls)), m.is_learner)
        for m in found
    )


def alarms(body: bytes) -> frozenset[str]:
    """Parse an AlarmResponse; unknown alarms are ignored. Raises `StateStoreError`."""
    return frozenset(a.alarm for a in decode(body, _AlarmList).alarms) & {NOSPACE, CORRUPT}


def failure(body: bytes) -> str:
    """Return the message of an error response, or ""."""
    try:
        found = decode(body, _Failure)
    except StateStoreError:
        return ""
    return shortened(found.message or found.error)


def decode(body: bytes, kind: type[T]) -> T:
    """Parse JSON. etcd writes 64-bit integers as text. Raises `StateStoreError`."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise invalid(str(e)) from None


def invalid(why: str) -> StateStoreError:
    """Return the error of a response that is not etcd's."""
    return StateStoreError(f"the response is not one of etcd's JSON API: {shortened(why)}")


def shortened(text: str) -> str:
    """Return the text without control characters, with at most `MAX_TEXT_CHARS` characters."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT_CHARS])
