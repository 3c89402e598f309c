"""Lists on their way from Spark to a task that takes Arrow batches. Called by `sinks`, `parts` and `writing`.

After each row Spark asks how large the batch has become, and Arrow's Java library answers by going over all lists
since the last one that was not null. Where most are null (headers of records that have none) a batch costs the square
of its rows. So lists travel empty instead of null, with a column beside them that tells which were null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MARK = "__penstock_null__"
"""Begins the name of the column that tells where the list of that name is null."""


def never_null(rows: DataFrame, name: str) -> Column:
    """A column as it is; where it holds lists, with empty ones for those that are null."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType

    kind = rows.schema[name].dataType
    if not isinstance(kind, ArrayType):
        return F.col(name)
    return F.coalesce(F.col(name), F.array().cast(ArrayType(kind.elementType))).alias(name)


def packed(rows: DataFrame) -> DataFrame:
    """Rows as they travel; `unpacked` makes of them what they were."""
    from pyspark.sql import functions as F  # noqa: N812

    lists = [field.name for field in rows.schema if field.dataType.typeName() == "array"]
    if not lists:
        return rows
    marks = [F.isnull(F.col(name)).alias(MARK + name) for name in lists]
    return rows.select(*(never_null(rows, name) for name in rows.columns), *marks)


def unpacked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as they were."""
    names = [name for name in batch.schema.names if not name.startswith(MARK)]
    if len(names) == batch.num_columns:
        return batch
    columns = []
    for name in names:
        column = batch.column(name)
        if MARK + name in batch.schema.names:
            nulls = batch.column(MARK + name)
            if nulls.true_count:
                column = pa.ListArray.from_arrays(column.offsets, column.values, type=column.type, mask=nulls)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([batch.schema.field(name) for name in names]))
