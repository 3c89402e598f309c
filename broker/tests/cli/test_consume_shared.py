"""`penstock consume --share-group` against a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, AlterConfig, ShareOffset

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


def start_with_the_first_message(bootstrap: str, group: str) -> None:
    async def change() -> None:
        async with Admin(bootstrap) as admin:
            await admin.alter_group_configs({group: [AlterConfig("share.auto.offset.reset", "earliest")]})

    asyncio.run(change())


def backlog(bootstrap: str, group: str) -> int:
    async def read() -> list[ShareOffset]:
        async with Admin(bootstrap) as admin:
            return list((await admin.share_offsets(group)).values())

    return sum(offset.lag or 0 for offset in asyncio.run(read()))


def test_a_member_prints_and_accepts_what_is_there_and_ends(cli: Cli, bootstrap: str, topic: str) -> None:
    start_with_the_first_message(bootstrap, topic)
    cli("produce", topic, stdin="one\ntwo\nthree\n")
    found = cli("consume", topic, "--share-group", topic)
    assert (found.code, sorted(found.lines)) == (0, ["one", "three", "two"])
    assert backlog(bootstrap, topic) == 0
    assert cli("consume", topic, "--share-group", topic).out == ""


def test_a_count_accepts_no_more_than_it_prints(cli: Cli, bootstrap: str, topic: str) -> None:
    start_with_the_first_message(bootstrap, topic)
    cli("produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    some = cli("consume", topic, "--share-group", topic, "--count", "4", "--output", "json")
    assert len(some.lines) == 4
    assert backlog(bootstrap, topic) == 6
    rest = cli("consume", topic, "--share-group", topic)
    assert sorted([json.loads(line)["value"] for line in some.lines] + rest.lines) == sorted(map(str, range(10)))


@pytest.mark.parametrize("more", [["--group", "g"], ["--offset", "3"], ["--from-beginning"], ["--partition", "0"]])
def test_a_start_position_or_another_group_is_refused(cli: Cli, topic: str, more: list[str]) -> None:
    refused = cli("consume", topic, "--share-group", "g", *more)
    assert (refused.code, "a share group reads what its brokers deliver" in refused.err) == (2, True)


def test_a_missing_topic_is_named(cli: Cli, name: str) -> None:
    missing = cli("consume", name, "--share-group", name)
    assert (missing.code, name in missing.err) == (3, True)
