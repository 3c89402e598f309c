"""Invalid values in the store, where single settings are parsed from their records."""

from __future__ import annotations

import pytest

from penstock.control.broker_availability import parse_availability
from penstock.control.restored.recovery import stored_min_insync
from penstock.state import keys
from penstock.state.records import BrokerConfigRecord, encode
from penstock.state.store import StoreEntry


@pytest.mark.parametrize(
    ("value", "is_draining"),
    [("true", True), (" TRUE ", True), ("false", False), ("yes", False), (True, False), (None, False), ({}, False)],
)
def test_a_broker_drains_only_if_its_setting_is_valid_and_true(value: object, is_draining: bool) -> None:
    key = keys.broker_config(3)
    entry = StoreEntry(key, encode(BrokerConfigRecord(settings={"broker.draining": value})), 1, 1, 1)
    assert parse_availability([entry]).draining == ({3} if is_draining else set())


@pytest.mark.parametrize(
    ("value", "expected"), [(" 3 ", 3), ("0", 2), ("x", 2), ("9" * 5000, 2), (3, 2), (None, 2), ("\u0663", 2)]
)
def test_an_invalid_minimum_isr_size_is_the_default_when_a_restored_store_is_recovered(
    value: object, expected: int
) -> None:
    assert stored_min_insync({"min.insync.replicas": value}, 2) == expected
