"""State of operations on a cluster, stored as annotations of its ConfigMap.

Everything else is observed. The annotations record what observation cannot attribute to the operator: drains and
replica moves that it started, settings that it set. They are written before the operation starts, so that a restarted
operator continues it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock_operator.model.cluster import MAX_BROKERS
from penstock_operator.specs import etcd

DRAINING = "penstock.io/draining"
MOVING = "penstock.io/moving"
SETTINGS = "penstock.io/settings"
MEMBERS = "penstock.io/etcd-members"
EXTERNAL = "penstock.io/external-unknown-to"
SPREAD = "penstock.io/spread-moves"
HIBERNATION = "penstock.io/hibernation"
RESTORE = "penstock.io/restore"
ROUTES = "penstock.io/routes"
ETCD_GROUP, BROKER_GROUP = "etcd", "brokers"
MAX_ATTEMPTS = 1_000
HIBERNATED = "hibernated"


@dataclass(frozen=True, slots=True)
class SpreadMove:
    """The last pod that was deleted to spread a group of pods over nodes. `at`: RFC 3339. `attempts`: moves since the
    group was spread for long."""

    pod: str
    at: str
    attempts: int


RestorePhase = Literal[
    "Waiting", "Verifying", "Stopping", "Preparing", "Installing", "Starting", "Recovering", "Reverting",
    "Completed", "Failed", "Refused",
]  # fmt: skip
"""Phases of a restore of etcd."""
FINAL_PHASES = ("Completed", "Failed", "Refused")


class RestoreRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last restore of etcd. `snapshot` and `request` are those of `spec.etcd.restore`; times are in RFC 3339."""

    snapshot: str
    request: str
    phase: RestorePhase
    start_time: str
    end_time: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ClusterAnnotations:
    """The recorded state."""

    draining: frozenset[int] = frozenset()
    """Brokers that the operator drains, or drained before it removed them. Other drains are not touched."""
    moving: str = ""
    """Why replicas move; empty if they do not."""
    settings: frozenset[str] = frozenset()
    """Names of the cluster-wide settings that the operator set."""
    etcd_members: int = 0
    """Number of sidecar etcd members, fixed at creation; 0: unknown."""
    external_unknown_to: Mapping[int, str] = field(default_factory=dict)
    """By broker: UID of the pod that ran when the external address changed and does not know the address; empty if
    there was none. UIDs instead of times, because the clocks of operator and node may differ."""
    spread_moves: Mapping[str, SpreadMove] = field(default_factory=dict)
    """By group of pods: `ETCD_GROUP` or `BROKER_GROUP`."""
    hibernation: str = ""
    """`HIBERNATED` once the operator stops the pods; while the cluster wakes, since when (RFC 3339); else empty."""
    restore: RestoreRecord | None = None
    """The last restore of etcd."""
    has_routes: bool = False
    """Whether there may be TLSRoutes of the cluster, which the operator reads only then."""


def read(annotations: Mapping[str, str]) -> ClusterAnnotations:
    """Parse annotations; ignores invalid values, because users can write annotations."""
    return ClusterAnnotations(
        draining=frozenset(int(word) for word in _words(annotations, DRAINING) if _is_broker(word)),
        moving=annotations.get(MOVING, ""),
        settings=frozenset(_words(annotations, SETTINGS)),
        etcd_members=next((n for n in etcd.MEMBERS if annotations.get(MEMBERS) == str(n)), 0),
        external_unknown_to=_by_number(annotations.get(EXTERNAL, "")),
        spread_moves=_moves(annotations.get(SPREAD, "")),
        hibernation=annotations.get(HIBERNATION, ""),
        restore=_restore(annotations.get(RESTORE, "")),
        has_routes=annotations.get(ROUTES) == "true",
    )


def written(notes: ClusterAnnotations) -> dict[str, str]:
    """Return the annotations; omits empty ones."""
    texts = {
        DRAINING: ",".join(map(str, sorted(notes.draining))),
        MOVING: notes.moving,
        SETTINGS: ",".join(sorted(notes.settings)),
        MEMBERS: str(notes.etcd_members or ""),
        EXTERNAL: json.dumps({str(n): uid for n, uid in sorted(notes.external_unknown_to.items())})
        if notes.external_unknown_to
        else "",
        SPREAD: json.dumps({group: [move.pod, move.at, move.attempts] for group, move in notes.spread_moves.items()})
        if notes.spread_moves
        else "",
        HIBERNATION: notes.hibernation,
        RESTORE: msgspec.json.encode(notes.restore).decode() if notes.restore is not None else "",
        ROUTES: "true" if notes.has_routes else "",
    }
    return {name: text for name, text in texts.items() if text}


def _words(annotations: Mapping[str, str], name: str) -> list[str]:
    return [word for word in annotations.get(name, "").split(",") if word]


def _by_number(text: str) -> dict[int, str]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {int(n): str(value) for n, value in found.items() if _is_broker(n)}


def _moves(text: str) -> dict[str, SpreadMove]:
    try:
        found = msgspec.json.decode(text or "{}", type=dict[Literal["etcd", "brokers"], tuple[str, str, int]])
    except msgspec.DecodeError:
        return {}
    return {
        group: SpreadMove(pod, at, attempts)
        for group, (pod, at, attempts) in sorted(found.items())
        if 0 < attempts <= MAX_ATTEMPTS
    }


def _restore(text: str) -> RestoreRecord | None:
    try:
        return msgspec.json.decode(text, type=RestoreRecord) if text else None
    except msgspec.DecodeError:
        return None


def _is_broker(word: str) -> bool:
    return word.isdecimal() and len(word) <= len(str(MAX_BROKERS))
