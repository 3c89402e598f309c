"""Values of the settings of share groups."""

from __future__ import annotations

import pytest

from penstock.config.broker import BrokerConfig
from penstock.config.definition import InvalidSetting
from penstock.config.share_groups import ShareOffsetReset, ShareResetStrategy, parse_offset_reset

HOUR_MS = 3_600_000


@pytest.mark.parametrize("strategy", ["latest", "earliest"])
def test_a_group_starts_at_an_end_of_the_log(strategy: str) -> None:
    assert parse_offset_reset(strategy) == ShareOffsetReset(ShareResetStrategy(strategy), 0)


@pytest.mark.parametrize(
    ("duration", "expected_ms"),
    [
        ("PT1H", HOUR_MS),
        ("P1DT2H3M4.5S", 26 * HOUR_MS + 184_500),
        ("pt0,25s", 250),
        ("PT0.0019S", 1),
        ("P999999999D", 999_999_999 * 24 * HOUR_MS),
        ("PT999999999999H", 999_999_999_999 * HOUR_MS),
    ],
)
def test_a_group_starts_at_records_of_an_age(duration: str, expected_ms: int) -> None:
    found = parse_offset_reset(f"by_duration:{duration}")
    assert found == ShareOffsetReset(ShareResetStrategy.BY_DURATION, expected_ms)


@pytest.mark.parametrize(
    "text",
    ["", "none", "Latest", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:P1DT",
     "by_duration:-PT1H", "by_duration:PT-1H", "by_duration:P1Y", "by_duration:PT1H ", "by_duration:P1234567890D",
     "by_duration:PT\u0661H", "by_duration:PT1.1234567890S"],
)  # fmt: skip
def test_other_values_are_rejected_with_the_allowed_ones(text: str) -> None:
    with pytest.raises(InvalidSetting, match="it must be latest, earliest, or by_duration:<ISO 8601 duration>"):
        parse_offset_reset(text)


@pytest.mark.parametrize("names", ["", "uniform"])
def test_share_groups_have_exactly_one_assignor(names: str) -> None:
    with pytest.raises(InvalidSetting, match=r"group\.share\.assignors"):
        BrokerConfig.from_texts({"group.share.assignors": names})
