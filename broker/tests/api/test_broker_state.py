"""What DescribeConfigs reports about a broker beside its settings."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from penstock import __version__
from penstock.config.definition import SettingSource
from penstock.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

BROKER = 4
NAMES = ["penstock.release", "penstock.certificates", "broker.removable"]
LOADED = SimpleNamespace(listener="SSL", expires_at=1_800_000_000.5, reload_error=None)
OUTDATED = SimpleNamespace(listener="http", expires_at=-1.0, reload_error='cannot read "tls.crt"')


async def entries(broker, names: list[str] | None = None) -> dict[str, object]:
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="0", configuration_keys=names or NAMES)
    (result,) = (await broker.ask(DescribeConfigsRequest(resources=[resource]), 4)).results
    assert all(c.read_only and c.config_source == SettingSource.DEFAULT for c in result.configs)
    return {c.name: c.value for c in result.configs}


async def test_a_broker_without_tls_that_does_not_drain_reports_its_release(broker) -> None:
    assert await entries(broker) == {"penstock.release": __version__}


@pytest.mark.parametrize("certificates", [[LOADED, OUTDATED]])
async def test_certificates_are_reported_with_why_changed_ones_were_not_loaded(broker) -> None:
    found = json.loads(str((await entries(broker))["penstock.certificates"]))
    assert found == [
        {"listener": "SSL", "expires_ms": 1_800_000_000_500, "reload_error": None},
        {"listener": "http", "expires_ms": -1000, "reload_error": 'cannot read "tls.crt"'},
    ]


@pytest.mark.parametrize("settings", [{"broker.draining": "true"}])
async def test_a_draining_broker_without_replicas_is_removable(broker) -> None:
    assert (await entries(broker))["broker.removable"] == "true"
