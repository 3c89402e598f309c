"""UpdateFeatures at every version: all updates or none, with errors in the field that clients of the version read."""

from __future__ import annotations

import pytest

from penstock.api.features import MAX_UPDATES, FeaturesApi
from penstock.control.features import FEATURE, Features
from penstock.control.membership import FEATURE_LEVEL
from penstock.state.watcher import Watcher
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

VERSIONS = range(3)
INVALID = ErrorCode.INVALID_UPDATE_VERSION


@pytest.fixture
async def ask(broker):
    watcher = Watcher(broker.store, broker.view, broker.config)
    await watcher.start()
    yield type(broker.ask)(FeaturesApi(Features(broker.store, broker.view, watcher, FEATURE_LEVEL)).routes())
    await watcher.stop()


def update(feature: str = FEATURE, level: int = FEATURE_LEVEL, **more) -> FeatureUpdateKey:
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


@pytest.mark.parametrize(
    ("first", "level", "upgrade_type", "error"),
    [
        (2, 2, 1, 0),
        (2, 3, 1, INVALID),
        (2, 1, 1, INVALID),
        (2, 1, 2, 0),
        (2, 1, 3, 0),
        (2, 0, 1, INVALID),
        (2, 0, 2, 0),
        (1, 2, 2, INVALID),
        (1, 2, 3, INVALID),
        (1, 2, 1, 0),
        (2, -1, 2, INVALID),
        (2, 1, 0, INVALID),
        (2, 1, 4, INVALID),
    ],
)
async def test_a_feature_of_kafka_is_changed_as_in_kafka(
    ask, broker, first: int, level: int, upgrade_type: int, error: int
) -> None:
    """Apache Kafka 4.3.1 returns the same error codes."""
    for before in (2, first):
        lowered = update("transaction.version", before, upgrade_type=1 if before == 2 else 2)
        assert (await ask(UpdateFeaturesRequest(feature_updates=[lowered]), 2)).error_code == 0
    change = update("transaction.version", level, upgrade_type=upgrade_type)
    assert (await ask(UpdateFeaturesRequest(feature_updates=[change]), 2)).error_code == error
    expected = first if error else level
    assert broker.view.features["transaction.version"] == expected


async def test_version_0_permits_a_downgrade_by_a_flag(ask, broker) -> None:
    down = update("share.version", 0)
    assert (await ask(UpdateFeaturesRequest(feature_updates=[down]), 0)).error_code == INVALID
    down.allow_downgrade = True
    assert (await ask(UpdateFeaturesRequest(feature_updates=[down]), 0)).error_code == 0
    assert broker.view.features["share.version"] == 0


async def test_updates_of_several_features_are_applied_together_or_not_at_all(ask, broker) -> None:
    good, bad = update("group.version", 0, upgrade_type=2), update("share.version", 2)
    assert (await ask(UpdateFeaturesRequest(feature_updates=[good, bad]), 2)).error_code == INVALID
    assert broker.view.features["group.version"] == 1
    bad.max_version_level = 1
    assert (await ask(UpdateFeaturesRequest(feature_updates=[good, bad]), 2)).error_code == 0
    assert broker.view.features["group.version"] == 0
