"""UpdateFeatures: raises the feature level of the cluster (KIP-584). ApiVersions reports the level."""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.control.features import FEATURE, Features
from penstock.control.results import AdminError
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

MAX_UPDATES = 100
NO_RESULTS_VERSION = 2
"""The version from which a response has no results per feature."""
UPGRADE_TYPE_VERSION = 1
UPGRADE_TYPES = frozenset({1, 2, 3})
"""Upgrade, safe downgrade and unsafe downgrade."""


class FeaturesApi:
    """Serves UpdateFeatures 0 to 2."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def routes(self) -> list[Route]:
        """Return the routes of this API."""
        return [Route(UpdateFeaturesRequest, self.update, failed)]

    async def update(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """Apply all updates or none.

        A rejected update is the error of the whole response, in every version, because clients of versions 0 and 1 take
        a response without a top-level error for a success.
        """
        updates = request.feature_updates
        if len(updates) > MAX_UPDATES:
            return refused(
                ErrorCode.INVALID_REQUEST,
                f"{len(updates)} updates exceed the limit of {MAX_UPDATES} per request; split the request",
            )
        try:
            for update in updates:
                check_update(update, context.version)
                await self.features.raise_to(update.max_version_level, validate_only=True)
            if updates and not request.validate_only:
                await self.features.raise_to(max(update.max_version_level for update in updates))
        except AdminError as e:
            return refused(e.error, e.message)
        if context.version >= NO_RESULTS_VERSION:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(results=[UpdatableFeatureResult(feature=update.feature) for update in updates])


def check_update(update: FeatureUpdateKey, version: int) -> None:
    """Raise AdminError for an unknown feature or an invalid upgrade type."""
    if update.feature != FEATURE:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f'feature "{update.feature[:100]}" does not exist; use "{FEATURE}"',
        )
    if version >= UPGRADE_TYPE_VERSION and update.upgrade_type not in UPGRADE_TYPES:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f'upgrade type "{update.upgrade_type}" of "{FEATURE}" is invalid; use one of {sorted(UPGRADE_TYPES)}',
        )


def refused(error: int, message: str | None = None) -> UpdateFeaturesResponse:
    """Return a response with an error."""
    return UpdateFeaturesResponse(error_code=error, error_message=message)


def failed(request: UpdateFeaturesRequest, error: int) -> UpdateFeaturesResponse:
    """Return a response with an error, for the dispatcher."""
    return refused(error)
