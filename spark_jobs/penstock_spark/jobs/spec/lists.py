"""Carries list columns from Spark to a task that takes Arrow batches. Called by `sinks`, `data_files` and `writing`.

After each row Spark asks for the batch's size, and Arrow's Java library computes it from all lists since the last one
that was not null. If most lists are null (headers), a batch costs the square of its rows. So a null list travels as an
empty list, and a second column marks the nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NULL_MARKER = "__penstock_null__"
"""Prefix of the column that marks the nulls of a list column."""


def replace_nulls(rows: DataFrame, name: str) -> Column:
    """Return a column; if it holds lists, with empty lists instead of nulls."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType

    kind = rows.schema[name].dataType
    if not isinstance(kind, ArrayType):
        return F.col(name)
    return F.coalesce(F.col(name), F.array().cast(ArrayType(kind.elementType))).alias(name)


def pack_lists(rows: DataFrame) -> DataFrame:
    """Replace null lists by empty lists and add columns that mark them. `unpack_lists` reverses this."""
    from pyspark.sql import functions as F  # noqa: N812

    lists = [field.name for field in rows.schema if field.dataType.typeName() == "array"]
    if not lists:
        return rows
    marks = [F.isnull(F.col(name)).alias(NULL_MARKER + name) for name in lists]
    return rows.select(*(replace_nulls(rows, name) for name in rows.columns), *marks)


def unpack_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Restore the null lists of rows from `pack_lists`."""
    names = [name for name in batch.schema.names if not name.startswith(NULL_MARKER)]
    if len(names) == batch.num_columns:
        return batch
    columns = []
    for name in names:
        column = batch.column(name)
        if NULL_MARKER + name in batch.schema.names:
            nulls = batch.column(NULL_MARKER + name)
            if nulls.true_count:
                column = pa.ListArray.from_arrays(column.offsets, column.values, type=column.type, mask=nulls)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([batch.schema.field(name) for name in names]))
