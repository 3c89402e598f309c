"""Invalid settings in the store: the view applies all others, and each invalid one is logged once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from watcher_kit import A, B, Followed, topic

from penstock.state import keys
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import BrokerConfigRecord, encode
from penstock.state.store import PutOp

Event = MutableMapping[str, Any]


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    store = EmbeddedStore(":memory:")
    made = Followed(store)
    await made.watcher.start()
    yield made
    await made.watcher.stop()
    await store.close()


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """Yield the log events."""
    with structlog.testing.capture_logs() as captured:
        yield captured


def invalid_settings(events: list[Event]) -> list[Event]:
    """Remove the logged events, and return those of invalid settings."""
    found = [event for event in events if "invalid setting in the metadata store" in event["event"]]
    events.clear()
    return found


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("retention.ms", "-7", '"-7"'), ("retention.ms", 5, "int"), ("from.the.future", "1", '"1"')],
)
async def test_an_invalid_setting_of_a_topic_is_logged_once_and_the_brokers_default_applies(
    followed: Followed, events: list[Event], name: str, value: object, shown: str
) -> None:
    await followed.write(PutOp(keys.broker_config(None), b'{"settings":{"log.retention.ms":"7"}}'))
    operations = topic(A, "a", overrides={"segment.bytes": "4096", name: value, "penstock.owner": "x"})
    for _ in range(2):
        await followed.write(*operations, *topic(B, "b"))
        await followed.watcher._reload()
        assert set(followed.view.topics) == {"a", "b"}
        config = followed.view.topics["a"].config
        assert (config.segment_bytes, config.retention_ms) == (4096, 7)
        assert followed.view.topics["a"].overrides == {"segment.bytes": "4096", "penstock.owner": "x"}
    (logged,) = invalid_settings(events)
    assert (logged["name"], logged["value"], logged["resource"]) == (name, shown, 'topic "a"')
    await followed.write(*topic(B, "b", overrides={"segment.ms": "x"}))
    assert [event["name"] for event in invalid_settings(events)] == ["segment.ms"]
    await followed.write(*topic(A, "a"))
    await followed.write(*operations)
    assert len(invalid_settings(events)) == 1, "a setting that became invalid again is logged again"


@pytest.mark.parametrize(("broker_id", "resource"), [(None, "all brokers"), (0, "broker 0")])
@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("log.retention.ms", "-7", '"-7"'),
        ("log.retention.ms", ["5"], "list"),
        ("log.retention.hour", "1", '"1"'),
        ("num.partitions", "4", '"4"'),
    ],
)
async def test_an_invalid_setting_of_brokers_is_logged_once_and_the_next_source_applies(
    followed: Followed,
    events: list[Event],
    broker_id: int | None,
    resource: str,
    name: str,
    value: object,
    shown: str,
) -> None:
    records = {None: {"log.retention.ms": "6"}, 0: {"log.retention.ms": "7"}}
    records[broker_id] = {"max.partitions": "9", "log.retention.hours": "-1", name: value}
    writes = [PutOp(keys.broker_config(i), encode(BrokerConfigRecord(settings=s))) for i, s in records.items()]
    for _ in range(2):
        await followed.write(*writes, *topic(A, "a"))
        await followed.watcher._reload()
        assert followed.config.max_partitions == 9
        assert followed.config.num_partitions == 1
        assert followed.view.topics["a"].config.retention_ms == (7 if broker_id is None else 6)
    (logged,) = invalid_settings(events)
    assert (logged["name"], logged["value"], logged["resource"]) == (name, shown, resource)


async def test_settings_that_contradict_each_other_are_reported_and_the_defaults_apply(followed: Followed) -> None:
    lags = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}
    await followed.write(*topic(A, "a", overrides={**lags, "retention.ms": "5"}))
    config = followed.view.topics["a"].config
    assert (config.retention_ms, config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (5, 0, (1 << 63) - 1)
    assert "min.compaction.lag.ms (2) must not be greater" in followed.watcher.problems[keys.topic(A)]


async def test_a_record_with_more_settings_than_there_can_be_changes_nothing(followed: Followed) -> None:
    await followed.write(*topic(A, "a", overrides={"retention.ms": "5"}))
    await followed.write(*topic(A, "a", overrides={f"x{i}": "1" for i in range(1001)}))
    assert followed.view.topics["a"].config.retention_ms == 5
    assert keys.topic(A) in followed.watcher.problems
