"""The settings in a broker's registration: rack, failure domain, draining."""

from __future__ import annotations

import asyncio

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.control.broker_reports import BrokerReports, ReportedSettings, report_embedded
from penstock.control.config_describe import describe_broker
from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource
from penstock.state import keys
from penstock.state.records import BrokerRecord, decode
from penstock.state.store import StoreUnavailable
from penstock.wire.errors import ErrorCode

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
RACK, DOMAIN, DRAINING = "broker.rack", "broker.failure.domain", "broker.draining"


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, ReportedSettings(None, "", False)),
        ({RACK: "a"}, ReportedSettings("a", "a", False)),
        ({RACK: "a", DOMAIN: "a/n1"}, ReportedSettings("a", "a/n1", False)),
        ({RACK: ""}, ReportedSettings(None, "", False)),
        ({DRAINING: "true"}, ReportedSettings(None, "", True)),
    ],
)
def test_where_no_failure_domain_is_set_the_rack_is_one(settings: dict[str, str], reported: ReportedSettings) -> None:
    assert ReportedSettings.from_config(BrokerConfig.from_texts(settings)) == reported


@pytest.mark.parametrize("name", [RACK, DOMAIN])
@pytest.mark.parametrize("bad", ["x" * 513, "a\nb", "\x1b[0m"])
def test_a_place_is_printable_text_of_bounded_length(name: str, bad: str) -> None:
    with pytest.raises(InvalidSetting, match="512"):
        BrokerConfig.from_texts({name: bad})


def test_what_is_set_at_run_time_counts_before_what_was_given_at_the_start() -> None:
    config = BrokerConfig.from_texts({RACK: "file"})
    config.apply_dynamic({}, {RACK: "store", DOMAIN: "store/n1"})
    assert ReportedSettings.from_config(config) == ReportedSettings("store", "store/n1", False)
    config.apply_dynamic({}, {})
    assert ReportedSettings.from_config(config) == ReportedSettings("file", "file", False)


@pytest.fixture
async def reports(cluster):
    """Yield the reports of a single broker, which follow its settings."""
    reports = BrokerReports(cluster.config, lambda reported: report_embedded(cluster.store, 0, reported))
    reports.start(ReportedSettings.from_config(cluster.config))
    yield reports
    await reports.close()


async def change(cluster, *changes: tuple[str, int, str | None]) -> ErrorCode:
    config_changes = [ConfigChange(*each) for each in changes]
    return (await cluster.configs.change(ConfigResource.BROKER, "0", config_changes)).error


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_change_of_place_reaches_the_registration_and_the_view_and_the_epoch_stays(cluster, reports) -> None:
    epoch = cluster.view.brokers[0].epoch
    assert not await change(cluster, (RACK, SET, "zone-a"), (DOMAIN, SET, "zone-a/node-1"))
    await until(lambda: cluster.view.brokers[0].rack == "zone-a")
    broker = cluster.view.brokers[0]
    assert (broker.failure_domain, broker.epoch) == ("zone-a/node-1", epoch)
    described = {d.setting.name: d for d in describe_broker(cluster.config)}
    assert described[DOMAIN].value == "zone-a/node-1"
    assert described[DOMAIN].setting.dynamic
    assert not await change(cluster, (RACK, DELETE, None), (DOMAIN, DELETE, None))
    await until(lambda: cluster.view.brokers[0].rack is None)
    assert cluster.view.brokers[0].failure_domain == ""


async def test_a_lone_broker_never_shows_itself_as_one_to_be_emptied(cluster, reports) -> None:
    assert not await change(cluster, (DRAINING, SET, "true"))
    assert not await change(cluster, (RACK, SET, "a"))
    await until(lambda: cluster.view.brokers[0].rack == "a")
    entry = await cluster.store.get(keys.broker(0))
    assert not decode(BrokerRecord, entry.key, entry.value).draining


async def test_the_newest_settings_are_shown_last_and_again_while_the_store_is_away(monkeypatch) -> None:
    monkeypatch.setattr("penstock.control.broker_reports.RETRY_S", 0)
    config, written, held = BrokerConfig(), [], asyncio.Event()

    async def report(reported: ReportedSettings) -> None:
        await held.wait()
        written.append(reported.rack)
        if len(written) == 1:
            raise StoreUnavailable("away")

    reports = BrokerReports(config, report)
    reports.start(ReportedSettings.from_config(config))
    for rack in ("a", "b", "c"):
        config.apply_dynamic({}, {RACK: rack})
        await asyncio.sleep(0)
    held.set()
    await until(lambda: written[-1:] == ["c"] and reports._task is None)
    assert written == ["a", "c"], "one write at a time; what was overtaken is not written"
    config.apply_dynamic({}, {RACK: "c", "replica.lag.time.max.ms": "5"})
    await asyncio.sleep(0)
    assert written == ["a", "c"], "other settings write nothing"
    await reports.close()
