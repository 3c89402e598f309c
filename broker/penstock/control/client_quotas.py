"""Describes and alters client quotas (KIP-546). Called by `api.client_quotas`.

The quotas of an entity are one record of the store, which any broker changes.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address

from penstock.config.addresses import quoted
from penstock.control.config_changes import rewrite_value
from penstock.control.results import VIEW_TIMEOUT_S, AdminError, ConfigOutcome, store_error
from penstock.security.quotas.resolution import CLIENT_ID, CLIENT_KINDS, IP, USER, QuotaKind
from penstock.state import keys
from penstock.state.records import BadRecord, decode, encode
from penstock.state.security_records import ClientQuotaRecord
from penstock.state.store import Store, StoreEntry, StoreError
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import MAX_CLIENT_ID_BYTES

MAX_NAME_BYTES = MAX_CLIENT_ID_BYTES
"""Maximum size of an entity's name in UTF-8."""
MAX_QUOTA_ENTITIES = 100_000
"""Maximum number of entities with quotas: each broker keeps all of them in memory."""
MAX_CONCURRENT_ENTITIES = 256
"""Entities of one request that are changed concurrently."""
ENTITY_TYPES = (USER, CLIENT_ID, IP)
WHOLE_NUMBERS: dict[str, float] = {
    QuotaKind.PRODUCE: (1 << 63) - 1,
    QuotaKind.FETCH: (1 << 63) - 1,
    QuotaKind.CONNECTION: (1 << 31) - 1,
}
"""The quotas that Kafka keeps as integers, with their maximum."""

Entity = Sequence[tuple[str, str | None]]
"""Pairs of entity type and name, None for the default, as a client sent them."""


class QuotaMatch(IntEnum):
    """How a filter component matches the name of an entity."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """A component of a filter; `match` is what the client sent and can be no `QuotaMatch`."""

    entity_type: str
    match: int
    name: str | None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Changes of one entity's quotas by key; None removes a quota."""

    entity: Entity
    changes: Sequence[tuple[str, float | None]]


class ClientQuotaService:
    """The stored quotas of users, client ids and addresses."""

    def __init__(self, store: Store, view: ClusterView, watcher: Watcher) -> None:
        self.store, self.view, self.watcher = store, view, watcher

    def describe(self, filters: Sequence[QuotaFilter], is_strict: bool) -> list[ClientQuotaRecord]:
        """Return the records that match all filters; a strict request excludes entities of further types.

        Raises `AdminError`.
        """
        check_filters(filters)
        return [
            record
            for record in self.view.security.quotas.values()
            if all(matches(each, record.entity) for each in filters)
            and (not is_strict or len(record.entity) == len(filters))
        ]

    async def alter(self, alterations: Sequence[QuotaAlteration], validate_only: bool) -> list[ConfigOutcome]:
        """Change entities independently; the results are in the order of the alterations."""
        entities = [tuple(sorted(each.entity, key=repr)) for each in alterations]
        counts = Counter(entities)
        outcomes: list[ConfigOutcome] = []
        for start in range(0, len(alterations), MAX_CONCURRENT_ENTITIES):
            part = range(start, min(start + MAX_CONCURRENT_ENTITIES, len(alterations)))
            outcomes += await asyncio.gather(
                *[self._alter(alterations[i], counts[entities[i]] > 1, validate_only) for i in part]
            )
        return outcomes

    async def _alter(self, alteration: QuotaAlteration, is_repeated: bool, validate_only: bool) -> ConfigOutcome:
        try:
            if is_repeated:
                raise invalid("the request names the same entity more than once; merge its changes into one entry")
            entity = check_entity(alteration.entity)
            check_changes(entity, alteration.changes)
            revision = await self._write(entity, dict(alteration.changes), validate_only)
            if revision:
                await self.watcher.applied(revision, VIEW_TIMEOUT_S)
        except AdminError as e:
            return ConfigOutcome(e.error, e.message)
        except StoreError as e:
            return ConfigOutcome(store_error(e), str(e))
        return ConfigOutcome()

    async def _write(self, entity: dict[str, str | None], changes: dict[str, float | None], validate_only: bool) -> int:
        """Rewrite the entity's record and return the revision, 0 if nothing has changed."""

        def rewrite(entry: StoreEntry | None) -> bytes | None:
            present = present_quotas(entry)
            if entry is None and len(self.view.security.quotas) >= MAX_QUOTA_ENTITIES:
                raise AdminError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{MAX_QUOTA_ENTITIES} entities have quotas, which is the maximum; remove quotas or use defaults",
                )
            merged = {**present, **changes}
            quotas = {key: value for key, value in merged.items() if value is not None}
            if entry is not None and quotas == present:
                return entry.value
            return encode(ClientQuotaRecord(entity=entity, quotas=quotas)) if quotas else None

        return await rewrite_value(self.store, keys.client_quota(entity), rewrite, validate_only)


def present_quotas(entry: StoreEntry | None) -> Mapping[str, float]:
    """Return the quotas of a record; none for an unreadable one, which can be replaced."""
    if entry is None:
        return {}
    try:
        return decode(ClientQuotaRecord, entry.key, entry.value).quotas
    except BadRecord:
        return {}


def invalid(message: str) -> AdminError:
    """Return the error for a request that cannot succeed."""
    return AdminError(ErrorCode.INVALID_REQUEST, message)


def check_entity(entity: Entity) -> dict[str, str | None]:
    """Return the entity's names by type. Raises `AdminError`."""
    if not entity:
        raise invalid("the entity is empty; name a user, a client-id, both, or an ip")
    names: dict[str, str | None] = {}
    for entity_type, name in entity:
        if entity_type not in ENTITY_TYPES:
            raise invalid(f"unknown entity type {quoted(entity_type)}; use user, client-id or ip")
        if entity_type in names:
            raise invalid(f'the entity has more than one "{entity_type}"; use one')
        if name == "":
            raise invalid(f'the name of the entity "{entity_type}" is empty; use null for the default entity')
        if name is not None and len(name.encode()) > MAX_NAME_BYTES:
            raise invalid(f'the name of the entity "{entity_type}" exceeds {MAX_NAME_BYTES} bytes; use a shorter one')
        names[entity_type] = check_address(name) if entity_type == IP and name is not None else name
    if IP in names and len(names) > 1:
        raise invalid('an entity with "ip" cannot have a user or client-id; use separate entries')
    return names


def check_address(name: str) -> str:
    """Return an address as the server writes those of its peers. Raises `AdminError`."""
    try:
        return str(ip_address(name))
    except ValueError:
        raise invalid(f"{quoted(name)} is not an IP address; host names and networks are not supported") from None


def check_changes(entity: Mapping[str, str | None], changes: Sequence[tuple[str, float | None]]) -> None:
    """Raise `AdminError` for keys or values that an entity cannot have. As in Kafka, any key can be removed."""
    kinds = (QuotaKind.CONNECTION,) if IP in entity else CLIENT_KINDS
    if len({key for key, _ in changes}) < len(changes):
        raise invalid("a quota is listed more than once for one entity; remove the duplicate")
    for key, value in changes:
        if value is None:
            continue
        if key not in kinds:
            known = ", ".join(kinds)
            raise invalid(f"unknown quota {quoted(key)} for an entity of {' and '.join(entity)}; use {known}")
        if not math.isfinite(value) or value <= 0:
            raise invalid(f'the quota "{key}" is "{value:g}"; use a number greater than 0, or remove the quota')
        if key in WHOLE_NUMBERS and not (value.is_integer() and value <= WHOLE_NUMBERS[key]):
            raise invalid(f'the quota "{key}" is "{value:g}"; use a whole number up to {WHOLE_NUMBERS[key]}')


def check_filters(filters: Sequence[QuotaFilter]) -> None:
    """Raise `AdminError` for a filter that contradicts itself."""
    types = [each.entity_type for each in filters]
    if any(not entity_type for entity_type in types):
        raise invalid("a filter component has no entity type; use user, client-id or ip")
    for each in filters:
        if types.count(each.entity_type) > 1:
            raise invalid(f"the filter names the entity type {quoted(each.entity_type)} more than once; use it once")
        if each.entity_type not in ENTITY_TYPES:
            message = f"unknown entity type {quoted(each.entity_type)}; use user, client-id or ip"
            raise AdminError(ErrorCode.UNSUPPORTED_VERSION, message)
        if each.match not in set(QuotaMatch):
            raise invalid(f'unknown match type "{each.match}"; use 0 (exact), 1 (default) or 2 (any)')
        if (each.match == QuotaMatch.EXACT) != (each.name is not None):
            raise invalid(f"a name is required for an exact match and for no other; see entity type {each.entity_type}")
    if IP in types and len(types) > 1:
        raise invalid('a filter with "ip" cannot have a user or client-id; use separate requests')


def matches(component: QuotaFilter, entity: Mapping[str, str | None]) -> bool:
    """Return whether an entity has the component's type, and the name that it asks for."""
    if component.entity_type not in entity:
        return False
    return component.match == QuotaMatch.ANY or entity[component.entity_type] == component.name
