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
RESULTS_UNTIL = 1
"""From the next version on there is one error for all."""


class FeaturesApi:
    """Handler of UpdateFeatures 0 to 2."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def routes(self) -> list[Route]:
        return [Route(UpdateFeaturesRequest, UpdateFeaturesResponse, self.update, 0, 2, failed)]

    async def update(self, request: UpdateFeaturesRequest, context: RequestContext) -> UpdateFeaturesResponse:
        """Each update is made for itself, in the order of the request."""
        if len(request.feature_updates) > MAX_UPDATES:
            return failed(request, ErrorCode.INVALID_REQUEST)
        results = [await self._one(update, request.validate_only) for update in request.feature_updates]
        worst = next((result for result in results if result.error_code), None)
        if worst is not None and context.version > RESULTS_UNTIL:
            return UpdateFeaturesResponse(error_code=worst.error_code, error_message=worst.error_message)
        return UpdateFeaturesResponse(results=results)

    async def _one(self, update: FeatureUpdateKey, validate_only: bool) -> UpdatableFeatureResult:
        result = UpdatableFeatureResult(feature=update.feature)
        try:
            if update.feature != FEATURE:
                raise AdminError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"There is no feature {update.feature[:100]!r}: this cluster has {FEATURE}.",
                )
            await self.features.raise_to(update.max_version_level, validate_only)
        except AdminError as e:
            result.error_code, result.error_message = e.error, e.message
        return result


def failed(request: UpdateFeaturesRequest, error: int) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_code=error,
        results=[UpdatableFeatureResult(feature=u.feature, error_code=error) for u in request.feature_updates],
    )
