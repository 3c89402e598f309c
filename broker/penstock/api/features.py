"""UpdateFeatures: raises the feature level of the cluster (KIP-584). ApiVersions tells which it is."""

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
RESULTS_BEFORE = 2
"""The version from which on a response has no results for single features."""
UPGRADE_TYPE_FROM = 1
UPGRADE_TYPES = frozenset({1, 2, 3})
"""Upgrade, safe downgrade, unsafe downgrade."""


class FeaturesApi:
    """Handler of UpdateFeatures 0 to 2."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def routes(self) -> list[Route]:
        return [Route(UpdateFeaturesRequest, UpdateFeaturesResponse, self.update, 0, 2, failed)]

    async def update(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """All updates or none: one that is refused is the error of the whole response, in every version.

        Clients of versions 0 and 1 take a response without an error at the top for a success.
        """
        updates = request.feature_updates
        if len(updates) > MAX_UPDATES:
            return refused(ErrorCode.INVALID_REQUEST, f"{len(updates)} updates in one request: at most {MAX_UPDATES}")
        try:
            for update in updates:
                check_update(update, context.version)
                await self.features.raise_to(update.max_version_level, validate_only=True)
            if updates and not request.validate_only:
                await self.features.raise_to(max(update.max_version_level for update in updates))
        except AdminError as e:
            return refused(e.error, e.message)
        if context.version >= RESULTS_BEFORE:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(results=[UpdatableFeatureResult(feature=update.feature) for update in updates])


def check_update(update: FeatureUpdateKey, version: int) -> None:
    """Raises `AdminError`."""
    if update.feature != FEATURE:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"There is no feature {update.feature[:100]!r}: this cluster has {FEATURE}.",
        )
    if version >= UPGRADE_TYPE_FROM and update.upgrade_type not in UPGRADE_TYPES:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The upgrade type of feature {FEATURE} must be one of {sorted(UPGRADE_TYPES)}, not {update.upgrade_type}.",
        )


def refused(error: int, message: str | None = None) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error, error_message=message)


def failed(request: UpdateFeaturesRequest, error: int) -> UpdateFeaturesResponse:
    return refused(error)
