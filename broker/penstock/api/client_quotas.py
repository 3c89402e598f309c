"""DescribeClientQuotas and AlterClientQuotas (KIP-546): requests to `ClientQuotaService`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.api.routes import RequestContext, Route
from penstock.control.client_quotas import ClientQuotaService, QuotaAlteration, QuotaFilter
from penstock.control.results import AdminError
from penstock.security.quotas.resolution import QuotaKind
from penstock.state.security_records import ClientQuotaRecord
from penstock.wire.messages import alter_client_quotas as alter
from penstock.wire.messages import describe_client_quotas as describe

VALUE_ORDER: dict[str, int] = {
    key: position for position, key in enumerate((QuotaKind.FETCH, QuotaKind.REQUEST, QuotaKind.PRODUCE))
}
"""Position of a quota in a response, as in Kafka's; others follow."""


class ClientQuotasApi:
    """Describes and alters client quotas."""

    def __init__(self, quotas: ClientQuotaService) -> None:
        self.quotas = quotas

    def routes(self) -> list[Route]:
        """Return the routes of these APIs."""
        return [
            Route(describe.DescribeClientQuotasRequest, self.describe, failed_describe),
            Route(alter.AlterClientQuotasRequest, self.alter, failed_alter),
        ]

    def describe(
        self, request: describe.DescribeClientQuotasRequest, context: RequestContext
    ) -> describe.DescribeClientQuotasResponse:
        """Serve DescribeClientQuotas 0 to 1."""
        filters = [QuotaFilter(c.entity_type, c.match_type, c.match) for c in request.components]
        try:
            found = self.quotas.describe(filters, request.strict)
        except AdminError as e:
            return describe.DescribeClientQuotasResponse(error_code=e.error, error_message=e.message)
        return describe.DescribeClientQuotasResponse(entries=[described(record) for record in found])

    async def alter(
        self, request: alter.AlterClientQuotasRequest, context: RequestContext
    ) -> alter.AlterClientQuotasResponse:
        """Serve AlterClientQuotas 0 to 1."""
        alterations = [alteration(entry) for entry in request.entries]
        outcomes = await self.quotas.alter(alterations, request.validate_only)
        return alter.AlterClientQuotasResponse(
            entries=[
                alter.AlterClientQuotasResponseEntryData(outcome.error, outcome.message, in_order(entry.entity))
                for entry, outcome in zip(request.entries, outcomes, strict=True)
            ]
        )


def described(record: ClientQuotaRecord) -> describe.EntryData:
    """Return a record as an entry of the response."""
    quotas = sorted(record.quotas.items(), key=lambda quota: VALUE_ORDER.get(quota[0], len(VALUE_ORDER)))
    return describe.EntryData(
        entity=[describe.EntityData(entity_type, name) for entity_type, name in sorted(record.entity.items())],
        values=[describe.ValueData(key, value) for key, value in quotas],
    )


def in_order(entity: Sequence[alter.EntityData]) -> list[alter.EntityData]:
    """Return an entity's parts by type: `client-id` before `user`, the order of Kafka's responses."""
    return sorted(entity, key=lambda part: part.entity_type)


def alteration(entry: alter.EntryData) -> QuotaAlteration:
    """Return the service's form of an entry."""
    return QuotaAlteration(
        [(part.entity_type, part.entity_name) for part in entry.entity],
        [(op.key, None if op.remove else op.value) for op in entry.ops],
    )


def failed_describe(request: describe.DescribeClientQuotasRequest, error: int) -> describe.DescribeClientQuotasResponse:
    """Return the response to DescribeClientQuotas with an error."""
    return describe.DescribeClientQuotasResponse(error_code=error)


def failed_alter(request: alter.AlterClientQuotasRequest, error: int) -> alter.AlterClientQuotasResponse:
    """Return the response to AlterClientQuotas with an error for each entity."""
    entries = [
        alter.AlterClientQuotasResponseEntryData(error_code=error, entity=in_order(e.entity)) for e in request.entries
    ]
    return alter.AlterClientQuotasResponse(entries=entries)
