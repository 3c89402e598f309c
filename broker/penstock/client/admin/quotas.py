"""Admin calls about client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.client.admin.types import ClientQuota
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.wire.messages import alter_client_quotas as alter
from penstock.wire.messages import describe_client_quotas as describe

EXACT, DEFAULT, ANY = 0, 1, 2
"""How a filter matches the name of an entity."""
MAX_CHANGED_ENTITIES = 200
"""Entities per request."""

QuotaEntity = Mapping[str, str | None]
"""Names by entity type: `user`, `client-id`, both, or `ip`; None is the default entity."""


class QuotaAdminClient:
    """Quota calls; applications use `admin.Admin`."""

    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster

    async def describe_client_quotas(
        self, entity: QuotaEntity | None = None, *, any_name: Iterable[str] = (), strict: bool = False
    ) -> list[ClientQuota]:
        """Return the quotas of matching entities, sorted by entity; without arguments, all quotas.

        `entity` has names that an entity must have, and `any_name` types of which it may have any name. With `strict`,
        it must have no other type.
        """
        components = [
            describe.ComponentData(kind, DEFAULT if name is None else EXACT, name)
            for kind, name in (entity or {}).items()
        ]
        components += [describe.ComponentData(kind, ANY, None) for kind in any_name]
        request = describe.DescribeClientQuotasRequest(components=components, strict=strict)

        async def attempt() -> describe.DescribeClientQuotasResponse:
            response = await self._cluster.call_any(request, describe.DescribeClientQuotasResponse)
            check(response.error_code, "client quotas", response.error_message)
            return response

        response = await self._cluster.retrying(attempt)
        found = [
            ClientQuota(
                {part.entity_type: part.entity_name for part in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=lambda quota: sorted((kind, name or "") for kind, name in quota.entity.items()))

    async def alter_client_quotas(
        self, changes: Iterable[tuple[QuotaEntity, Mapping[str, float | None]]], *, validate_only: bool = False
    ) -> None:
        """Set quotas of entities by key, such as `producer_byte_rate`; None removes a quota. Others are kept.

        All entities are tried; raises the first error, a `BrokerError` whose `about` names the entity.
        """
        entries = [
            alter.EntryData(
                [alter.EntityData(kind, name) for kind, name in entity.items()],
                [alter.OpData(key, 0.0 if value is None else value, value is None) for key, value in quotas.items()],
            )
            for entity, quotas in changes
        ]
        first_error: ClientError | None = None
        for start in range(0, len(entries), MAX_CHANGED_ENTITIES):
            request = alter.AlterClientQuotasRequest(entries[start : start + MAX_CHANGED_ENTITIES], validate_only)
            error = await self._alter_quotas(request)
            first_error = first_error or error
        if first_error is not None:
            raise first_error

    async def _alter_quotas(self, request: alter.AlterClientQuotasRequest) -> BrokerError | None:
        """Send a request, which may be repeated, and return the first error of an entity."""

        async def attempt() -> BrokerError | None:
            response = await self._cluster.call_any(request, alter.AlterClientQuotasResponse)
            errors = [
                BrokerError(entry.error_code, f"quotas of {entity_text(entry.entity)}", entry.error_message)
                for entry in response.entries
                if entry.error_code
            ]
            for error in errors:
                if error.retriable:
                    raise error
            return errors[0] if errors else None

        return await self._cluster.retrying(attempt)


def entity_text(entity: Iterable[alter.EntityData]) -> str:
    """Return an entity for messages."""
    return ", ".join(
        f"default {part.entity_type}" if part.entity_name is None else f'{part.entity_type} "{part.entity_name}"'
        for part in entity
    )
