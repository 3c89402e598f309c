"""Merges small Parquet files of a folder into large ones. Called by `sinks` between batches, in the driver.

Row groups are read and written one after the other, so memory does not grow with the size of the files.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock_spark.jobs.run.data_files import ROW_GROUP_BYTES, sync
from penstock_spark.jobs.run.folder import ParquetFolder, sync_up
from penstock_spark.jobs.spec.specs import CompactionSpec


def compact_folder(folder: ParquetFolder, compaction: CompactionSpec, compression: str) -> int:
    """Compact partition folders with files since the last compaction. Return the number of replaced files."""
    replaced = 0
    for name in folder.touched():
        for group in groups(small_files(folder.root / name, folder.tag, compaction), compaction):
            replaced += len(group)
            replace(folder, name, group, compression)
    folder.compacted()
    return replaced


def small_files(path: Path, tag: str, compaction: CompactionSpec) -> list[tuple[Path, int]]:
    """Return a writer's files smaller than half of the target size, oldest first. Other writers compact theirs: if two
    replaced the same files, both results would stay."""
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:
        found = [
            (Path(e.path), e.stat().st_size)
            for e in entries
            if e.is_file() and e.name.endswith(".parquet") and e.name.startswith((f"part-{tag}-", f"compact-{tag}-"))
        ]
    return sorted((f, size) for f, size in found if size * 2 < compaction.target.bytes)


def groups(files: Sequence[tuple[Path, int]], compaction: CompactionSpec) -> Iterator[list[Path]]:
    """Yield groups of files that together reach the target size; none if there are fewer than `min_files`."""
    if len(files) < compaction.min_files:
        return
    group: list[Path] = []
    total = 0
    for path, size in files:
        group.append(path)
        total += size
        if total >= compaction.target.bytes:
            yield group
            group, total = [], 0
    if len(group) >= compaction.min_files:
        yield group


def replace(folder: ParquetFolder, name: str, group: Sequence[Path], compression: str) -> None:
    """Replace files by one with their rows in order. Files whose schema differs from the first are left out."""
    schema = pq.read_schema(group[0])
    same = [path for path in group if pq.read_schema(path).equals(schema)]
    if len(same) < 2:
        return
    target = str(Path(name) / f"compact-{folder.tag}-{uuid.uuid4().hex[:16]}.parquet")
    top = folder.compaction_staging()
    staging = top / target
    staging.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(staging, schema, compression=compression) as writer:
        for table in row_groups(same):
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
    sync(staging)
    sync_up({staging.parent}, top)
    folder.replace([target], [str(path.relative_to(folder.root)) for path in same])


def row_groups(paths: Sequence[Path]) -> Iterator[pa.Table]:
    """Yield the rows of files in row groups of `ROW_GROUP_BYTES`, regardless of the files' own."""
    waiting: list[pa.Table] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                waiting.append(file.read_row_group(index))
                if sum(t.nbytes for t in waiting) >= ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
