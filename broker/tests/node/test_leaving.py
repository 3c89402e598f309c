"""A stopping broker keeps its listeners open until no other broker names it to clients."""

from __future__ import annotations

import asyncio
from collections.abc import Container

import pytest

from penstock.node import clustered
from penstock.node.clustered import wait_until_unnamed


class Lists:
    """Brokers 2 and 3, which name broker 1 in their first responses; `silent` brokers do not respond."""

    def __init__(self, answers_with_name: dict[int, int], silent: Container[int] = ()) -> None:
        self.left, self.silent = answers_with_name, silent

    async def brokers_named_by(self, broker_id: int) -> Container[int]:
        await asyncio.sleep(0)
        if broker_id in self.silent:
            raise ConnectionRefusedError
        self.left[broker_id] -= 1
        return {1, 2, 3} if self.left[broker_id] >= 0 else {2, 3}


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustered, "POLL_S", 0)


async def test_the_wait_lasts_until_every_other_broker_has_dropped_the_name() -> None:
    lists = Lists({2: 3, 3: 7})
    await wait_until_unnamed(lists, 1, [1, 2, 3])
    assert lists.left == {2: -1, 3: -1}


async def test_brokers_that_do_not_answer_are_not_waited_for() -> None:
    lists = Lists({2: 3, 3: 7}, silent={3})
    await wait_until_unnamed(lists, 1, [1, 2, 3])
    assert lists.left == {2: -1, 3: 7}


async def test_the_wait_ends_although_a_broker_keeps_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustered, "UNNAMED_S", 0.01)
    await wait_until_unnamed(Lists({2: 1 << 60}), 1, [2])
