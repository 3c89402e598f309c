"""The APIs of a disabled feature answer UNSUPPORTED_VERSION, and serve again once it is enabled."""

from __future__ import annotations

from uuid import uuid4

import pytest

from penstock.api.disabled_features import REQUIRED_FEATURES, guard_route
from penstock.api.routes import RequestContext, Route
from penstock.config.broker import BrokerConfig
from penstock.control.features import Features, FeatureUpdate
from penstock.control.membership import FEATURE_LEVEL, ensure_cluster
from penstock.state.embedded import EmbeddedStore
from penstock.state.view import ClusterView
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


@pytest.fixture
async def features():
    store, view = EmbeddedStore(":memory:"), ClusterView()
    await ensure_cluster(store, uuid4)
    watcher = Watcher(store, view, BrokerConfig())
    await watcher.start()
    yield Features(store, view, watcher, FEATURE_LEVEL)
    await watcher.stop()
    await store.close()


@pytest.mark.parametrize(
    ("feature", "request_type", "response_type"),
    [
        ("group.version", ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
        ("share.version", ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
    ],
)
async def test_its_apis_are_refused_while_it_is_disabled(
    features: Features, request_type, response_type, feature: str
) -> None:
    route = Route(
        request_type, lambda request, context: response_type(), lambda request, e: response_type(error_code=e)
    )
    guard_route(route, features)
    context: RequestContext = None  # type: ignore[assignment]
    answers = []
    for level in (1, 0, 1):
        await features.update([FeatureUpdate(feature, level, may_lower=level == 0)])
        answers.append(route.handler(request_type(), context).error_code)  # type: ignore[union-attr]
    assert answers == [0, ErrorCode.UNSUPPORTED_VERSION, 0]


def test_other_apis_are_left_alone(features: Features) -> None:
    route = Route(ListGroupsRequest, lambda request, context: ListGroupsResponse())
    handler = route.handler
    guard_route(route, features)
    assert route.handler is handler


def test_each_feature_has_apis() -> None:
    assert set(REQUIRED_FEATURES.values()) == {"group.version", "share.version"}
