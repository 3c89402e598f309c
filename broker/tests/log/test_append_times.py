"""The times of batches are found by offset and by time, like by looking at all."""

from __future__ import annotations

import random
from dataclasses import replace

from log_kit import SMALL, START_MS, any_seed, append, batch_of, note_seed, open_log, opened
from memory_files import MemoryFiles

from penstock.log.append_times import BatchTime, find_first_newer, read_times


async def test_times_are_found_like_by_looking_at_all() -> None:
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    batches: list[BatchTime] = []
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, replace(SMALL, index_interval_bytes=300))
        for number in range(150):
            time_ms, base = START_MS + number * 8 + rng.randrange(-200, 200), log.end_offset
            size = len(append(log, batch_of(count := rng.randrange(1, 5), timestamp_ms=time_ms)))
            batches.append(BatchTime(base, time_ms + count - 1, size))
        await log.flush()
        assert len(log.segments) > 3
        ends = [*[b.base_offset for b in batches], log.end_offset]
        for start in (0, log.segments[2].base_offset + 1):
            log.move_start(start)
            search = log.new_search()
            for _ in range(60):
                time_ms, end = START_MS + rng.randrange(-10, 1300), rng.choice([e for e in ends if e >= start])
                newer = (
                    max(b.base_offset, start)
                    for b, batch_end in zip(batches, ends[1:], strict=True)
                    if b.time_ms > time_ms and batch_end > start and b.base_offset < end
                )
                assert find_first_newer(search, time_ms, end) == next(newer, end)
                begin, most = rng.randrange(start, log.end_offset), rng.randrange(1, 20)
                within = [
                    b._replace(base_offset=max(b.base_offset, begin))
                    for b, batch_end in zip(batches, ends[1:], strict=True)
                    if batch_end > begin and b.base_offset < end
                ]
                found = read_times(search, begin, end, most)
                assert found.batches == within[:most]
                assert found.end_offset == (within[most].base_offset if len(within) > most else end)
