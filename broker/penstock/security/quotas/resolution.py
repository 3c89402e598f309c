"""Finds the quota of a client or an address among the stored ones. Used by `client_quotas`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from penstock.state import keys
from penstock.state.security_records import ClientQuotaRecord

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""Entity types."""


class QuotaKind(StrEnum):
    """What a quota limits, by Kafka's keys."""

    PRODUCE = "producer_byte_rate"
    """Bytes of Produce requests per second and broker."""
    FETCH = "consumer_byte_rate"
    """Bytes of Fetch responses per second and broker."""
    REQUEST = "request_percentage"
    """Time on the event loop, in percent of it."""
    MUTATION = "controller_mutation_rate"
    """Partitions created or deleted per second."""
    CONNECTION = "connection_creation_rate"
    """Connections per second from an address."""


CLIENT_KINDS = (QuotaKind.PRODUCE, QuotaKind.FETCH, QuotaKind.REQUEST, QuotaKind.MUTATION)
"""The quotas of users and client ids."""

QuotaRecords = Mapping[str, ClientQuotaRecord]
"""Records by `keys.client_quota`."""


class ResolvedQuota(NamedTuple):
    """A quota, and the (user, client id) or (address, "") whose usage counts for it; "" stands for all of them."""

    quota: float
    entity: tuple[str, str]


def quotas_of_client(records: QuotaRecords, user: str, client_id: str) -> dict[QuotaKind, ResolvedQuota]:
    """Return the quotas of a user's client id, each from the level with the highest precedence that has it."""
    found: dict[QuotaKind, ResolvedQuota] = {}
    for key, entity in levels(user, client_id):
        record = records.get(key)
        quotas = {} if record is None else record.quotas
        for kind in CLIENT_KINDS:
            if kind in quotas and kind not in found:
                found[kind] = ResolvedQuota(quotas[kind], entity)
    return found


def levels(user: str, client_id: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the store key of each level and the entity whose usage counts at it, by Kafka's precedence."""
    for name in (user, None):
        yield keys.client_quota({USER: name, CLIENT_ID: client_id}), (user, client_id)
        yield keys.client_quota({USER: name, CLIENT_ID: None}), (user, client_id)
        yield keys.client_quota({USER: name}), (user, "")
    yield keys.client_quota({CLIENT_ID: client_id}), ("", client_id)
    yield keys.client_quota({CLIENT_ID: None}), ("", client_id)


def quota_of_address(records: QuotaRecords, host: str) -> float | None:
    """Return the connections per second that an address may open; None without a limit."""
    for name in (host, None):
        record = records.get(keys.client_quota({IP: name}))
        if record is not None and QuotaKind.CONNECTION in record.quotas:
            return record.quotas[QuotaKind.CONNECTION]
    return None
