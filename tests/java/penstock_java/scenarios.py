"""The scenarios, the kafka-clients releases they run with, and the features that a cluster must support for them.

A scenario whose need is not met is deselected at collection, so that no test is skipped at run time. `promised` returns
the features of the clusters under test; a test compares it with what they announce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from kafka import KafkaAdminClient

OLDER, NEWEST = "3.9.2", "4.3.1"
CLIENTS = (OLDER, NEWEST)
"""The newest release, and the one that Spark uses."""

ADD_PARTITIONS_TO_TXN = 24
CONSUMER_GROUP_HEARTBEAT = 68
SHARE_FETCH = 78
REASSIGNED_BROKERS = 3


class Need(Enum):
    """A feature that not every cluster supports."""

    TRANSACTIONS = "transactional producers"
    CONSUMER_PROTOCOL = "groups of KIP-848, where the coordinator assigns"
    SHARE_GROUPS = "groups of KIP-932, whose members acknowledge single records"
    THREE_BROKERS = "brokers that replicas can move between"


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
SECURED = (
    "admin-security",
    "reauthentication",
    "refused-login",
    "refused-rights",
    "refused-tls",
    "secured-copy",
)
"""Scenarios on a secured broker, each with a properties file: `test_secured_clients.py`."""
NEEDS = {
    "transaction-commit": Need.TRANSACTIONS,
    "transaction-abort": Need.TRANSACTIONS,
    "transaction-fencing": Need.TRANSACTIONS,
    "transaction-offsets": Need.TRANSACTIONS,
    "transaction-admin": Need.TRANSACTIONS,
    "transaction-epochs": Need.TRANSACTIONS,
    "group-next": Need.CONSUMER_PROTOCOL,
    "group-next-static": Need.CONSUMER_PROTOCOL,
    "share-implicit": Need.SHARE_GROUPS,
    "share-explicit": Need.SHARE_GROUPS,
    "reassignment": Need.THREE_BROKERS,
}
NEWEST_ONLY = frozenset(
    {
        "produce-split",
        "consume-by-duration",
        "admin-group-listing",
        "transaction-epochs",
        "group-next",
        "group-next-static",
        "share-implicit",
        "share-explicit",
    }
)
"""Scenarios in src4/, with features that clients before 4.1 lack or implement incorrectly."""

_SERVED: dict[Need, Callable[[set[int], int], bool]] = {
    Need.TRANSACTIONS: lambda apis, brokers: ADD_PARTITIONS_TO_TXN in apis,
    Need.CONSUMER_PROTOCOL: lambda apis, brokers: CONSUMER_GROUP_HEARTBEAT in apis,
    Need.SHARE_GROUPS: lambda apis, brokers: SHARE_FETCH in apis,
    Need.THREE_BROKERS: lambda apis, brokers: brokers >= REASSIGNED_BROKERS,
}


def served(bootstrap: str) -> set[Need]:
    """Return the features that the cluster at `bootstrap` announces."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        apis = {int(key) for key in admin.api_versions()}
        brokers = len(admin.describe_cluster()["brokers"])
    finally:
        admin.close()
    return {need for need, has in _SERVED.items() if has(apis, brokers)}


def promised(brokers: int) -> set[Need]:
    """Return the features of a Penstock cluster with that many brokers."""
    always = {Need.TRANSACTIONS, Need.CONSUMER_PROTOCOL, Need.SHARE_GROUPS}
    return always | {Need.THREE_BROKERS} if brokers >= REASSIGNED_BROKERS else always


def selected(client: str, has: set[Need]) -> Iterator[str]:
    """Return the scenarios for a client release on a cluster with these features."""
    names = [*SCENARIOS, *(name for name, need in NEEDS.items() if need in has)]
    return (name for name in names if client == NEWEST or name not in NEWEST_ONLY)
