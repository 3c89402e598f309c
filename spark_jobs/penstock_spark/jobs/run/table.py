"""A Delta table to which batches are appended or merged exactly once. Called by `sinks`; does not use Spark.

Each commit has a transaction of Delta's protocol: the id of the streaming query, which the checkpoint keeps, and the
batch number. A repeated batch finds its number in the table's log, in the same version as its files, and does nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from penstock_spark.jobs.run.data_files import DataFile
from penstock_spark.jobs.spec.specs import DeltaTarget
from penstock_spark.model.errors import PenstockSparkError

ATTEMPTS = 5
HISTORY = 100
"""Number of table versions searched for a batch: other writers may have added versions since."""
QUERY, BATCH, ROWS = "penstock.query", "penstock.batch", "penstock.rows"
"""Keys of a commit's metadata."""


class TableMismatch(PenstockSparkError):
    """The table's schema or partitioning differs from the job's; the message says how."""


class TableConflict(PenstockSparkError):
    """The table is ahead of the checkpoint."""


class Table:
    """One query's access to a table."""

    def __init__(self, target: DeltaTarget, app_id: str, clock: Callable[[], float] = time.time) -> None:
        self._target = target
        self._app_id = app_id
        self._clock = clock
        self._table: DeltaTable | None = None

    @property
    def uri(self) -> str:
        """Absolute location: tasks may run in another working directory than the driver."""
        path = self._target.path
        return path if "://" in path else str(Path(path).absolute())

    def open(
        self, schema: pa.Schema, partition_by: Sequence[str], configuration: Mapping[str, str] | None = None
    ) -> None:
        """Open the table; create it if it does not exist. Raises `TableMismatch`."""
        storage = dict(self._target.storage) or None
        DeltaTable.create(
            self.uri,
            Schema.from_arrow(schema),
            mode="ignore",
            partition_by=list(partition_by),
            configuration=cast("Any", dict(configuration or {})),
            storage_options=storage,
        )
        self._table = DeltaTable(self.uri, storage_options=storage)
        found = self._table.metadata().partition_columns
        if found != list(partition_by):
            raise TableMismatch(
                f'table "{self.uri}" is partitioned by {found or "nothing"}, the job by '
                f"{list(partition_by) or 'nothing'}; change the job, or write to another path"
            )
        check_schema(self.uri, pa.schema(self._table.schema().to_arrow()), schema)

    @property
    def app_id(self) -> str:
        """Application id of the transactions: the id of the streaming query."""
        return self._app_id

    @property
    def delta(self) -> DeltaTable:
        """The open table."""
        assert self._table is not None, "the table was opened"
        return self._table

    def has_batch(self, batch: int) -> bool:
        """Return whether the batch is committed. Raises `TableConflict` if a later one is."""
        self.delta.update_incremental()
        version = self.delta.transaction_version(self._app_id)
        if version is not None and version > batch:
            raise TableConflict(
                f'table "{self.uri}" has batch {version} of this checkpoint, which is at batch {batch}: the checkpoint '
                "was set back; restore the newer one, or start a new checkpoint at the table's end"
            )
        return version == batch

    def rows(self, batch: int) -> int | None:
        """Return the number of rows of a committed batch; None if the log no longer has it."""
        for entry in self.delta.history(HISTORY):
            if entry.get(QUERY) == self._app_id and entry.get(BATCH) == str(batch):
                found = entry.get(ROWS)
                return int(found) if found is not None else None
        return None

    def append(self, batch: int, parts: Sequence[DataFile], schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Commit files that tasks wrote, all in one version."""
        now_ms = int(self._clock() * 1000)
        actions = [AddAction(p.path, p.bytes, p.partition, now_ms, True, p.stats) for p in parts]
        rows = sum(part.rows for part in parts)

        self._commit(batch, lambda: self._add(actions, batch, rows, Schema.from_arrow(schema), partition_by))

    def merge(
        self,
        batch: int,
        source: Callable[[], pa.RecordBatchReader],
        keys: Sequence[str],
        deleted: str | None,
        rows: int = 0,
    ) -> dict[str, Any]:
        """Merge rows by key: existing rows are updated, others inserted, rows with a true `deleted` column deleted.

        `rows` is the number of rows, which the commit records.
        """
        same = " AND ".join(f"(target.{quoted(k)} IS NOT DISTINCT FROM source.{quoted(k)})" for k in keys)
        result: dict[str, Any] = {}

        def commit() -> None:
            reader = source()
            columns = [name for name in reader.schema.names if name != deleted]
            values = {quoted(name): f"source.{quoted(name)}" for name in columns}
            merger = self.delta.merge(
                reader, same, source_alias="source", target_alias="target",
                commit_properties=self._properties(batch, rows),
            )  # fmt: skip
            if deleted is None:
                merger = merger.when_matched_update(values).when_not_matched_insert(values)
            else:
                deletes, keeps = f"source.{quoted(deleted)}", f"NOT source.{quoted(deleted)}"
                merger = merger.when_matched_delete(deletes).when_matched_update(values, keeps)
                merger = merger.when_not_matched_insert(values, keeps)
            result.update(merger.execute())
            if not self.has_batch(batch):
                # A merge that changes no rows (deletions of missing rows) creates no version: commit an empty one.
                self._add([], batch, rows, self.delta.schema(), self.delta.metadata().partition_columns)

        self._commit(batch, commit)
        return result

    def _add(
        self, actions: Sequence[AddAction], batch: int, rows: int, schema: Schema, partition_by: Sequence[str]
    ) -> None:
        """Commit a version that adds these files and records the batch."""
        self.delta.create_write_transaction(
            cast("Any", actions), "append", schema, list(partition_by), commit_properties=self._properties(batch, rows)
        )

    def _properties(self, batch: int, rows: int) -> CommitProperties:
        now_ms = int(self._clock() * 1000)
        return CommitProperties(
            custom_metadata={QUERY: self._app_id, BATCH: str(batch), ROWS: str(rows)},
            app_transactions=[Transaction(self._app_id, batch, now_ms)],
        )

    def _commit(self, batch: int, commit: Callable[[], None]) -> None:
        """Retry on conflicts with other writers, unless one of them has committed this batch."""
        for attempt in range(ATTEMPTS):
            try:
                commit()
            except CommitFailedError:
                if self.has_batch(batch):
                    return
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                assert self.has_batch(batch), f"{self.uri}: batch {batch} was committed, but not its transaction"
                return

    def compact(self) -> None:
        """Compact small files in a version that changes no data; vacuum if the job says so."""
        target = self._target
        assert target.compact is not None, "the job compacts"
        self.delta.optimize.compact(target_size=target.compact.target.bytes)
        if target.vacuum_after is not None:
            hours = max(1, round(target.vacuum_after.ms / 3_600_000))
            self.delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False)


def quoted(name: str) -> str:
    """Return a quoted column name for SQL."""
    return f'"{name}"'


def check_schema(uri: str, found: pa.Schema, expected: pa.Schema) -> None:
    """Raise `TableMismatch` if the job's columns differ from the table's, which are fixed."""
    lacking = [f"{f.name} ({f.type})" for f in expected if f.name not in found.names]
    extra = [f"{f.name} ({f.type})" for f in found if f.name not in expected.names]
    if lacking or extra:
        words = []
        if lacking:
            words.append(f"the table has no column {', '.join(lacking)}")
        if extra:
            words.append(f"the job has no column {', '.join(extra)}")
        raise TableMismatch(f'table "{uri}": {" and ".join(words)}; change the job\'s query, or alter the table')
    for field in expected:
        have = found.field(field.name).type
        if delta_type(have) != delta_type(field.type):
            raise TableMismatch(
                f'table "{uri}": column "{field.name}" is {have}, but the job writes {field.type}; add a cast'
            )


def delta_type(type_: pa.DataType) -> str:
    """Return the Delta type of an Arrow type as text, ignoring field names inside lists and maps."""
    document = json.loads(Schema.from_arrow(pa.schema([pa.field("c", type_)])).to_json())
    return json.dumps(document["fields"][0]["type"], sort_keys=True).replace('"nullable": false', '"nullable": true')
