"""Producer ids are unique."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.state import keys, records
from penstock.state.embedded import EmbeddedStore
from penstock.state.records import BadRecord, ProducerIdsRecord
from penstock.state.store import PutOp, StoreError, StoreUnavailable
from penstock.txn.producer_ids import BLOCK_SIZE, LAST_ID, ProducerIds


@pytest.fixture
async def store():
    made = EmbeddedStore(":memory:")
    yield made
    await made.close()


async def test_ids_begin_at_0_and_go_on_over_blocks(store):
    ids = ProducerIds(store)
    assert [await ids.next_id() for _ in range(BLOCK_SIZE + 10)] == list(range(BLOCK_SIZE + 10))


async def test_many_askers_at_once_get_different_ids_and_take_no_more_blocks_than_needed(store):
    ids = ProducerIds(store)
    given = await asyncio.gather(*(ids.next_id() for _ in range(3 * BLOCK_SIZE)))
    assert sorted(given) == list(range(3 * BLOCK_SIZE))
    assert (await store.get(keys.PRODUCER_IDS)).version == 3


async def test_brokers_that_share_a_store_never_give_the_same_id(store):
    brokers = [ProducerIds(store) for _ in range(5)]
    given = await asyncio.gather(*(broker.next_id() for broker in brokers for _ in range(BLOCK_SIZE)))
    assert len(set(given)) == len(given)


async def test_a_block_is_taken_by_compare_and_swap():
    class Rival:
        """A store in which another broker reserves a block between the read and the write."""

        def __init__(self, store):
            self.store = store
            self.get = self.get_and_lose

        async def get_and_lose(self, key):
            entry = await self.store.get(key)
            self.get = self.store.get
            assert await ProducerIds(self.store).next_id() == 0
            return entry

        async def txn(self, *args):
            return await self.store.txn(*args)

    store = EmbeddedStore(":memory:")
    assert await ProducerIds(Rival(store)).next_id() == BLOCK_SIZE
    await store.close()


async def test_when_all_ids_are_used_up_that_is_an_error(store):
    await store.txn((), [PutOp(keys.PRODUCER_IDS, records.encode(ProducerIdsRecord(next_id=LAST_ID - BLOCK_SIZE)))])
    ids = ProducerIds(store)
    given = [await ids.next_id() for _ in range(BLOCK_SIZE)]
    assert given[-1] == LAST_ID - 1
    with pytest.raises(StoreError, match="producer ids are exhausted"):
        await ids.next_id()


async def test_an_unreadable_counter_is_an_error_and_not_a_new_beginning(store):
    await store.txn((), [PutOp(keys.PRODUCER_IDS, b"{}")])
    with pytest.raises(BadRecord):
        await ProducerIds(store).next_id()


async def test_after_a_failure_the_next_asker_may_succeed(store):
    ids = ProducerIds(store)
    failing = EmbeddedStore(":memory:")
    await failing.close()
    ids._store = failing
    with pytest.raises(StoreUnavailable):
        await ids.next_id()
    ids._store = store
    assert await ids.next_id() == 0


GIVER = """
import asyncio, sys
from penstock.state.embedded import EmbeddedStore
from penstock.txn.producer_ids import ProducerIds

async def main():
    ids = ProducerIds(EmbeddedStore(sys.argv[1]))
    while True:
        print(await ids.next_id(), flush=True)

asyncio.run(main())
"""


@pytest.mark.integration
def test_an_id_is_not_given_again_after_kill_9(tmp_path: Path):
    seen: set[int] = set()
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", GIVER, str(tmp_path / "state.db")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        given = [int(process.stdout.readline()) for _ in range(BLOCK_SIZE + 300)]
        os.kill(process.pid, signal.SIGKILL)
        given += [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.wait()
        process.stdout.close()
        assert not seen & set(given)
        seen |= set(given)
