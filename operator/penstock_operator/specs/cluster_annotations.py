"""What the operator has to remember of a cluster, as annotations of its ConfigMap.

All else is observed. These are wishes whose traces cannot be told from other people's: that a broker drains because the
operator wants it to go, that replicas are being moved to new brokers, which settings were set by the operator. They are
written before what they announce is begun, so that an operator that starts anew goes on where another was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_operator.model.cluster import MAX_BROKERS
from penstock_operator.specs import etcd

DRAINING = "penstock.io/draining"
MOVING = "penstock.io/moving"
SETTINGS = "penstock.io/settings"
MEMBERS = "penstock.io/etcd-members"
EXTERNAL = "penstock.io/external-unknown-to"


@dataclass(frozen=True, slots=True)
class ClusterAnnotations:
    draining: frozenset[int] = frozenset()
    """Brokers that the operator drains, or drained before it removed them. Others' drains are left alone."""
    moving: str = ""
    """Why replicas are being moved; empty where they are not."""
    settings: frozenset[str] = frozenset()
    """Names of settings that were set for all brokers."""
    etcd_members: int = 0
    """Of the sidecar etcd; fixed when the cluster is made. 0: not known."""
    external_unknown_to: Mapping[int, str] = field(default_factory=dict)
    """By broker the UID of the pod that was there when its external address became what it is, and does not know it;
    empty where there was none. (No times: those of the operator and of a node may be far apart.)"""


def read(annotations: Mapping[str, str]) -> ClusterAnnotations:
    """Whatever cannot be read, or cannot be, counts as not noted: others may write annotations."""
    return ClusterAnnotations(
        draining=frozenset(int(word) for word in _words(annotations, DRAINING) if _is_broker(word)),
        moving=annotations.get(MOVING, ""),
        settings=frozenset(_words(annotations, SETTINGS)),
        etcd_members=next((n for n in etcd.MEMBERS if annotations.get(MEMBERS) == str(n)), 0),
        external_unknown_to=_by_number(annotations.get(EXTERNAL, "")),
    )


def written(notes: ClusterAnnotations) -> dict[str, str]:
    """As annotations; empty ones are left out."""
    texts = {
        DRAINING: ",".join(map(str, sorted(notes.draining))),
        MOVING: notes.moving,
        SETTINGS: ",".join(sorted(notes.settings)),
        MEMBERS: str(notes.etcd_members or ""),
        EXTERNAL: json.dumps({str(n): uid for n, uid in sorted(notes.external_unknown_to.items())})
        if notes.external_unknown_to
        else "",
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


def _is_broker(word: str) -> bool:
    return word.isdecimal() and len(word) <= len(str(MAX_BROKERS))
