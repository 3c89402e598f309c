"""Which of a cluster's settings brokers read at their start, and which are changed while they run.

Only the former are in the settings file, so only they make brokers restart. The latter are set by the admin protocol
for all brokers at once: a file would go on to hold what was taken back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.config.broker import BROKER_SETTINGS
from penstock.config.definition import InvalidSetting
from penstock_operator.model.cluster import ClusterSpec

THROTTLE = "reassignment.throttle.bytes.per.second"
DRAINING, DOMAIN, RACK = "broker.draining", "broker.failure.domain", "broker.rack"
MANAGED = "etcd.managed"
OPERATORS = frozenset({"node.id", "listeners", "advertised.listeners", DRAINING, DOMAIN, RACK, MANAGED, THROTTLE})
"""What the operator sets from other parts of the resource; the schema refuses it in `config`."""


def start_settings(spec: ClusterSpec) -> dict[str, str]:
    """By name, in order. Unknown names are passed on: the broker's own error names the nearest known one."""
    chosen = {name: text for name, text in spec.config.items() if name not in OPERATORS and not is_dynamic(name)}
    if spec.etcd.managed or spec.etcd.sidecar is not None:
        chosen[MANAGED] = "true"
    return dict(sorted(chosen.items()))


def running_settings(spec: ClusterSpec) -> dict[str, str]:
    """What is set for all brokers at run time, by name, in order."""
    chosen = {name: text for name, text in spec.config.items() if name not in OPERATORS and is_dynamic(name)}
    chosen[THROTTLE] = str(spec.moving.throttle_bytes_per_second)
    return dict(sorted(chosen.items()))


def is_dynamic(name: str) -> bool:
    known = BROKER_SETTINGS.get(name)
    return known is not None and known.dynamic


def same(name: str, one: str | None, other: str | None) -> bool:
    """Whether two texts mean the same value; brokers may tell another text than was set."""
    if one is None or other is None:
        return one == other
    known = BROKER_SETTINGS.get(name)
    try:
        return one.strip() == other.strip() or (known is not None and known.parse(one) == known.parse(other))
    except InvalidSetting:
        return False


def toml(settings: Mapping[str, str]) -> str:
    """A settings file. JSON's texts are TOML's basic strings."""
    return "".join(
        f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(text, ensure_ascii=False)}\n"
        for name, text in settings.items()
    )
