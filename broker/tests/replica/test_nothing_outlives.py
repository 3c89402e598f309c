"""A deleted topic leaves no objects in memory, even without the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_kit import DataPath, accepted, batch_of, opened_data_path, until

from penstock.replica.leader import Leader


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts(leader: Leader) -> dict[str, weakref.ref[Any]]:
    """Return the parts of a partition that support weak references."""
    return {"producers": weakref.ref(leader.producers), "aborted": weakref.ref(leader.producers.transactions.aborted)}


async def written(path: DataPath, name: str, **settings: str) -> dict[str, weakref.ref[Any]]:
    leader = await path.partition(name, **settings)
    accepted(leader, batch_of(3, producer=(7, 0, 0)))
    accepted(leader, batch_of(3), all_in_sync=False)
    await path.flushed()
    return parts(leader)


async def deleted(path: DataPath, name: str) -> None:
    await path.delete(name)
    await path.removal.close()
    await path.flushed()
    await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
async def test_a_deleted_partition_is_gone_when_its_directory_is(tmp_path: Path, policy: str) -> None:
    async with opened_data_path(tmp_path, state=":memory:") as path:
        made = await written(path, "t", **{"cleanup.policy": policy})
        assert all(part() is not None for part in made.values())
        await deleted(path, "t")
        await until(lambda: all(part() is None for part in made.values()))
        assert not path.log_dir.retention.due
        assert not path.log_dir.compactor.timers
        assert not path.log_dir.topics


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
async def test_a_partition_that_is_closed_for_now_is_not_kept_by_what_looks_at_it_later(tmp_path: Path) -> None:
    async with opened_data_path(tmp_path, state=":memory:") as path:
        made = await written(path, "t")
        topic_id = path.view.topics["t"].topic_id
        path.replicas.drop_topic(path.view.topics["t"])
        path.log_dir.release(topic_id, 0)
        await until(lambda: all(part() is None for part in made.values()))
        assert not path.log_dir.retention.due
