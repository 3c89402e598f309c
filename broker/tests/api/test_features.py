"""UpdateFeatures at every version: all updates or none, with errors in the field that clients of the version read."""

from __future__ import annotations

import pytest

from penstock.api.features import MAX_UPDATES, FeaturesApi
from penstock.control.features import FEATURE, Features
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

VERSIONS = range(3)
INVALID = ErrorCode.INVALID_UPDATE_VERSION


@pytest.fixture
async def ask(broker):
    watcher = Watcher(broker.store, broker.view, broker.config)
    await watcher.start()
    yield type(broker.ask)(FeaturesApi(Features(broker.store, broker.view, watcher, 1)).routes())
    await watcher.stop()


def update(feature: str = FEATURE, level: int = 1, **more) -> FeatureUpdateKey:
    return FeatureUpdateKey(feature=feature, max_version_level=level, **more)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "updates",
    [
        [update("nope")],
        [update(""), update()],
        [update(), update("nope")],
        [update(level=99)],
        [update(), update(level=99)],
        [update(level=0)],
        [update(level=-1)],
    ],
    ids=str,
)
async def test_one_bad_update_is_the_error_of_the_whole_response(ask, broker, version: int, updates) -> None:
    """Apache Kafka 4.3.1 returns the same responses."""
    before = broker.view.feature_level
    response = await ask(UpdateFeaturesRequest(feature_updates=updates), version)
    assert (response.error_code, response.results) == (INVALID, [])
    assert response.error_message
    assert broker.view.feature_level == before


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("upgrade_type", [0, 9, -1])
async def test_an_upgrade_type_that_is_not_known_is_refused(ask, version: int, upgrade_type: int) -> None:
    request = UpdateFeaturesRequest(feature_updates=[update(upgrade_type=upgrade_type)])
    assert (await ask(request, version)).error_code == INVALID


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("updates", [[], [update()], [update(), update()]], ids=["none", "one", "twice"])
async def test_good_updates_are_told_one_by_one_until_version_2(ask, version: int, updates) -> None:
    response = await ask(UpdateFeaturesRequest(feature_updates=updates), version)
    assert (response.error_code, response.error_message) == (0, None)
    expected = [(FEATURE, 0)] * len(updates) if version < 2 else []
    assert [(r.feature, r.error_code) for r in response.results] == expected


@pytest.mark.parametrize("version", VERSIONS)
async def test_too_many_updates_and_failures_are_told_at_the_top(ask, version: int) -> None:
    response = await ask(UpdateFeaturesRequest(feature_updates=[update()] * (MAX_UPDATES + 1)), version)
    assert (response.error_code, response.results) == (ErrorCode.INVALID_REQUEST, [])
    failed = ask.failed(UpdateFeaturesRequest(feature_updates=[update()]), version, -1)
    assert (failed.error_code, failed.results) == (-1, [])
