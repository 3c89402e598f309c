"""A log behaves like a list of batches, for any sequence of operations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import SMALL, Digest, append, batch_of, headers_in, open_log, opened, read_all, settle
from memory_files import MemoryFiles

from penstock.log.partition_log import PartitionLog


@dataclass
class Model:
    """Expected content of the log."""

    batches: list[bytes] = field(default_factory=list)
    start_offset: int = 0
    end_offset: int = 0

    def bases(self) -> list[int]:
        return [headers_in(b)[0].base_offset for b in self.batches]

    def ends(self) -> list[int]:
        return [headers_in(b)[0].last_offset + 1 for b in self.batches]

    def content(self, offset: int, limit: int) -> bytes:
        return b"".join(b for b, end in zip(self.batches, self.ends(), strict=True) if offset < end <= limit)

    def truncate(self, offset: int) -> None:
        if offset >= self.end_offset:
            return
        kept = [b for b, end in zip(self.batches, self.ends(), strict=True) if end <= offset]
        cut = self.batches[len(kept) :]
        self.batches = kept
        self.end_offset = min(offset, headers_in(cut[0])[0].base_offset) if cut else offset
        self.start_offset = min(self.start_offset, self.end_offset)

    def digest(self) -> tuple[int, int]:
        digest = Digest()
        for batch in self.batches:
            digest.replay(headers_in(batch)[0])
        return digest.value, digest.count


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(1, 300)),
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(1, 300)),
        st.tuples(st.just("append"), st.integers(1, 6), st.integers(1, 300)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("delete"), st.floats(0, 1)),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("reopen"), st.booleans()),
        st.tuples(st.just("read"), st.floats(0, 1), st.floats(0, 1), st.integers(1, 3000)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(actions=actions, index_interval_bytes=st.sampled_from([0, 100, 1000, 100_000]))
def test_a_log_is_a_list_of_batches(actions: list[tuple[Any, ...]], index_interval_bytes: int) -> None:
    config = replace(SMALL, segment_bytes=1500, index_interval_bytes=index_interval_bytes)
    asyncio.run(Play(config).run(actions))


class Play:
    """A log and its model under the same operations."""

    def __init__(self, config: Any) -> None:
        self.config, self.files, self.model = config, MemoryFiles(), Model()
        self.state_known = True

    async def run(self, actions: list[tuple[Any, ...]]) -> None:
        todo = list(actions)
        while True:
            clean = True
            async with opened(self.files, "/data") as directory:
                log = open_log(directory, self.config)
                self.compare(log)
                while todo:
                    action = todo.pop(0)
                    if action[0] == "reopen":
                        clean = action[1]
                        break
                    await self.act(directory, log, action)
                    self.compare(log)
                else:
                    return
                await log.flush()
                await settle(directory)
                if not clean:
                    image = MemoryFiles()
                    image.inodes, image.names = self.files.inodes, dict(self.files.names)
                    image.directories = set(self.files.directories)
                    inodes = [bytearray(content) for content in self.files.inodes]
            if not clean:
                image.inodes = inodes
                self.files = image

    async def act(self, directory: Any, log: PartitionLog, action: tuple[Any, ...]) -> None:
        model = self.model
        if action[0] == "append":
            model.batches.append(append(log, batch_of(action[1], value=b"v" * action[2])))
            model.end_offset += action[1]
        elif action[0] == "truncate":
            offset = int(action[1] * model.end_offset)
            if offset < model.end_offset and log.segments and log.segments[0].base_offset > 0:
                self.state_known = False  # a truncation may lose producers of dropped segments
            known = log.segments[0].base_offset if log.segments else model.end_offset
            await log.truncate_to(offset)
            if offset < min(known, model.end_offset):
                model.batches, model.start_offset, model.end_offset = [], offset, offset
            else:
                model.truncate(offset)
        elif action[0] == "delete":
            offset = int(action[1] * model.end_offset)
            await log.delete_records_before(offset)
            model.start_offset = max(model.start_offset, offset)
        elif action[0] == "checkpoint":
            directory.start_checkpoint(log)
            await settle(directory)
        elif action[0] == "flush":
            await log.flush()
            assert log.flushed_offset == model.end_offset
        elif action[0] == "read":
            self.read(log, *action[1:])

    def read(self, log: PartitionLog, where: float, limit: float, max_bytes: int) -> None:
        model = self.model
        ends = [model.start_offset, *(e for e in model.ends() if e > model.start_offset)]
        limit_offset = ends[int(limit * (len(ends) - 1))]
        offset = model.start_offset + int(where * (limit_offset - model.start_offset))
        assert read_all(log, offset, limit_offset, max_bytes) == model.content(offset, limit_offset)

    def compare(self, log: PartitionLog) -> None:
        model = self.model
        assert (log.start_offset, log.end_offset) == (model.start_offset, model.end_offset)
        assert read_all(log) == model.content(model.start_offset, model.end_offset)
        state: Any = log.state
        if not self.state_known:
            return
        assert (state.value, state.count) == model.digest()
