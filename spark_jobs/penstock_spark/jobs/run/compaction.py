"""Small Parquet files of a folder become few large ones. Called by `sinks` between batches, in the driver.

Row groups are read and written one after the other, so memory does not grow with what is compacted.
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
    """Looks at partition folders that got files since the last time. Returns how many files were replaced."""
    replaced = 0
    for name in folder.touched():
        for group in groups(small_files(folder.root / name, folder.tag, compaction), compaction):
            replaced += len(group)
            replace(folder, name, group, compression)
    folder.compacted()
    return replaced


def small_files(path: Path, tag: str, compaction: CompactionSpec) -> list[tuple[Path, int]]:
    """A writer's files of less than half of the wanted size, oldest first. Others look after theirs: two who replaced
    the same files would each leave their rows there."""
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
    """Files that become one: together about as large as wanted; none where there are too few to be worth it."""
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
    """One file with the rows of all, in their order, in place of them. All columns must be those of the first."""
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
    """The rows of files, in row groups of a good size, however small theirs are."""
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
