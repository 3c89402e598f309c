"""UpdateFeatures: changes the levels of the cluster's features (KIP-584). ApiVersions reports them."""

from __future__ import annotations

from penstock.api.routes import RequestContext, Route
from penstock.control.features import Features, FeatureUpdate
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
UPGRADE = 1
DOWNGRADES = frozenset({2, 3})
"""Safe and unsafe downgrade."""


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
            read = [read_update(update, context.version) for update in updates]
            await self.features.update(read, request.validate_only)
        except AdminError as e:
            return refused(e.error, e.message)
        if context.version >= NO_RESULTS_VERSION:
            return UpdateFeaturesResponse()
        return UpdateFeaturesResponse(results=[UpdatableFeatureResult(feature=update.feature) for update in updates])


def read_update(update: FeatureUpdateKey, version: int) -> FeatureUpdate:
    """Return the requested level. Raises AdminError for an invalid upgrade type."""
    if version < UPGRADE_TYPE_VERSION:
        return FeatureUpdate(update.feature, update.max_version_level, update.allow_downgrade)
    if update.upgrade_type != UPGRADE and update.upgrade_type not in DOWNGRADES:
        raise AdminError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f'upgrade type "{update.upgrade_type}" of "{update.feature[:100]}" is invalid;'
            f" use one of {[UPGRADE, *sorted(DOWNGRADES)]}",
        )
    return FeatureUpdate(update.feature, update.max_version_level, update.upgrade_type in DOWNGRADES)


def refused(error: int, message: str | None = None) -> UpdateFeaturesResponse:
    """Return a response with an error."""
    return UpdateFeaturesResponse(error_code=error, error_message=message)


def failed(request: UpdateFeaturesRequest, error: int) -> UpdateFeaturesResponse:
    """Return a response with an error, for the dispatcher."""
    return refused(error)
