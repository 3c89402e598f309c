"""Settings on the command line."""

from __future__ import annotations

import pytest
import typer

from penstock.cli.parameters import parse_settings


def test_settings_may_hold_equal_signs_and_the_last_wins() -> None:
    assert parse_settings(["a=1", "b=x=y", "a=2"], "--config") == {"a": "2", "b": "x=y"}


@pytest.mark.parametrize("pair", ["num.partitions", "=3", " =3"])
def test_a_setting_without_name_or_value_is_refused_with_an_example(pair: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"use NAME=VALUE, for example num\.partitions=6"):
        parse_settings([pair], "--set", "num.partitions=6")
