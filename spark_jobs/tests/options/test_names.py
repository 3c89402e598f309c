"""Names of settings are those of Apache Kafka's client; each is applied, ignored as meaningless, or rejected."""

from __future__ import annotations

import pytest

from penstock_spark.options import names, sink, source


@pytest.mark.parametrize(
    ("known", "quiet", "refused"),
    [
        (source.KNOWN, names._CONSUMER, names._REJECTED_BY_CONSUMER),
        (sink.KNOWN, names._PRODUCER, names._REJECTED_BY_PRODUCER),
    ],
)
def test_no_setting_is_treated_in_two_ways(known: tuple[str, ...], quiet: list[str], refused: dict[str, str]) -> None:
    groups = [
        {name.removeprefix("kafka.") for name in known if name.startswith("kafka.")},
        {*names._SHARED, *quiet},
        {*names._REJECTED, *refused},
    ]
    assert sum(map(len, groups)) == len(set().union(*groups))
