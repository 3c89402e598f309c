"""Which scenarios there are, with which releases of kafka-clients they run, and what a cluster must serve for them.

A scenario whose need is not served is left out when tests are collected, so nothing is skipped at run time. NEEDS is
the one list of what one broker without transactions cannot serve; a test compares it with what the broker announces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from kafka import KafkaAdminClient

OLDER, NEWEST = "3.9.2", "4.3.1"
CLIENTS = (OLDER, NEWEST)
"""The newest release, and the one that Spark brings along."""

ADD_PARTITIONS_TO_TXN = 24
CONSUMER_GROUP_HEARTBEAT = 68
REASSIGNED_BROKERS = 3


class Need(Enum):
    """What a scenario needs beyond one broker; the value says why one broker does not have it today."""

    TRANSACTIONS = "the transaction coordinator comes with the cluster"
    CONSUMER_PROTOCOL = "groups of KIP-848, where the coordinator assigns, come with the cluster"
    THREE_BROKERS = "replicas can only move between brokers"


SCENARIOS = (
    "produce-idempotent",
    "produce-acks",
    "produce-refused",
    "produce-split",
    "produce-keyed",
    "defaults",
    "consume-offsets",
    "consume-bounds",
    "consume-by-duration",
    "group-range",
    "group-cooperative",
    "group-static",
    "group-commits",
    "group-pattern",
    "admin-topics",
    "admin-configs",
    "admin-partitions",
    "admin-records",
    "admin-cluster",
    "admin-groups",
    "admin-group-listing",
)
NEEDS = {
    "transaction-commit": Need.TRANSACTIONS,
    "transaction-abort": Need.TRANSACTIONS,
    "transaction-fencing": Need.TRANSACTIONS,
    "transaction-offsets": Need.TRANSACTIONS,
    "transaction-admin": Need.TRANSACTIONS,
    "group-next": Need.CONSUMER_PROTOCOL,
    "reassignment": Need.THREE_BROKERS,
}
NEWEST_ONLY = frozenset({"produce-split", "consume-by-duration", "admin-group-listing", "group-next"})
"""Scenarios in src4/: they use what clients before 4.1 do not have, or do wrong with any broker."""

_SERVED: dict[Need, Callable[[set[int], int], bool]] = {
    Need.TRANSACTIONS: lambda apis, brokers: ADD_PARTITIONS_TO_TXN in apis,
    Need.CONSUMER_PROTOCOL: lambda apis, brokers: CONSUMER_GROUP_HEARTBEAT in apis,
    Need.THREE_BROKERS: lambda apis, brokers: brokers >= REASSIGNED_BROKERS,
}


def served(bootstrap: str) -> set[Need]:
    """What the cluster at `bootstrap` has, by what it announces."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        apis = {int(key) for key in admin.api_versions()}
        brokers = len(admin.describe_cluster()["brokers"])
    finally:
        admin.close()
    return {need for need, has in _SERVED.items() if has(apis, brokers)}


def selected(bootstrap: str | None) -> Iterator[tuple[str, str]]:
    """(release of the client, scenario), for a cluster that runs already or, without one, for an embedded broker."""
    has = served(bootstrap) if bootstrap else set()
    names = [*SCENARIOS, *(name for name, need in NEEDS.items() if need in has)]
    for client in CLIENTS:
        for name in names:
            if client == NEWEST or name not in NEWEST_ONLY:
                yield client, name
