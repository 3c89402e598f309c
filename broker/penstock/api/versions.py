"""ApiVersions: the APIs and versions that this broker serves. The first request of every client."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.api.routes import Route
from penstock.control.features import CHANGEABLE_FEATURES, FEATURE, MIN_LEVEL, Features
from penstock.wire import codec
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.frame import RequestHeader
from penstock.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from penstock.wire.messages.fetch import FetchRequest
from penstock.wire.messages.produce import ProduceRequest

MIN_ADVERTISED_PRODUCE_VERSION = 0
"""Versions below 3 are not served, but several clients reject a broker that does not advertise them."""
ZERO_LEVEL_VERSION = 4
"""The version from which clients accept features whose lowest level is 0."""


class ApiVersionsApi:
    """Serves ApiVersions 0 to 4."""

    def __init__(self, routes: Iterable[Route], features: Features) -> None:
        """Collect the versions of `routes`. `features` are reported from version 3."""
        self.features = features
        served = {route.request.KEY: (route.first, route.last) for route in routes}
        served[ApiKey.PRODUCE] = (MIN_ADVERTISED_PRODUCE_VERSION, ProduceRequest.VERSIONS[1])
        served[ApiKey.FETCH] = FetchRequest.VERSIONS
        served[ApiKey.API_VERSIONS] = ApiVersionsRequest.VERSIONS
        self.served = [
            ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in sorted(served.items())
        ]

    def respond(self, frame: memoryview, header: RequestHeader) -> tuple[ApiVersionsResponse, int]:
        """Return (response, version to encode it in)."""
        first, last = ApiVersionsRequest.VERSIONS
        if not first <= header.version <= last:
            return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=self.served), 0
        request = codec.decode_request(ApiVersionsRequest, header.version, frame, header.body_offset)
        named = request.client_software_name, request.client_software_version
        if header.version >= 3 and not all(map(is_well_formed, named)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST), header.version
        response = ApiVersionsResponse(
            api_keys=self.served,
            supported_features=self.supported(header.version),
            finalized_features=[
                FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
                for name, level in self.features.finalized.items()
            ],
            finalized_features_epoch=self.features.epoch,
        )
        return response, header.version

    def supported(self, version: int) -> list[SupportedFeatureKey]:
        """Return the range of levels of each feature, as far as clients of this version can read it."""
        own = SupportedFeatureKey(name=FEATURE, min_version=MIN_LEVEL, max_version=self.features.max_level)
        if version < ZERO_LEVEL_VERSION:
            return [own]
        return [
            own,
            *(
                SupportedFeatureKey(name=name, min_version=0, max_version=feature.highest)
                for name, feature in CHANGEABLE_FEATURES.items()
            ),
        ]


def is_well_formed(name: str) -> bool:
    """Return whether a client software name is valid: letters, digits, dots and dashes, not at the ends (KIP-511)."""
    inner = name.replace("-", "").replace(".", "")
    return bool(name) and name[0] not in "-." and name[-1] not in "-." and inner.isascii() and inner.isalnum()
