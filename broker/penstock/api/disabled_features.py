"""Refuses the APIs of features that an administrator has disabled, as Kafka does. Used by `node.handlers`."""

from __future__ import annotations

from collections.abc import Awaitable

from penstock.api.routes import RequestContext, Route
from penstock.control.features import GROUP_VERSION, SHARE_VERSION, Features
from penstock.wire.apis import ApiKey
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Payload

REQUIRED_FEATURES = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: GROUP_VERSION,
    ApiKey.CONSUMER_GROUP_DESCRIBE: GROUP_VERSION,
    ApiKey.SHARE_GROUP_HEARTBEAT: SHARE_VERSION,
    ApiKey.SHARE_GROUP_DESCRIBE: SHARE_VERSION,
    ApiKey.SHARE_FETCH: SHARE_VERSION,
    ApiKey.SHARE_ACKNOWLEDGE: SHARE_VERSION,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: SHARE_VERSION,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: SHARE_VERSION,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: SHARE_VERSION,
}
"""The feature that each API requires; others require none."""


def guard_route(route: Route, features: Features) -> None:
    """Let the handler of a route answer UNSUPPORTED_VERSION while its feature is disabled."""
    required = REQUIRED_FEATURES.get(ApiKey(route.request.KEY))
    if required is None:
        return
    handler, failure = route.handler, route.failure
    assert failure is not None, f"{route.request.__name__} can be refused"

    def handle(request: Payload, context: RequestContext) -> Payload | Awaitable[Payload] | None:
        if not features.is_enabled(required):
            return failure(request, ErrorCode.UNSUPPORTED_VERSION)
        return handler(request, context)

    route.handler = handle
