"""What NULL means in the SQL expressions of a job's file. Called by every kind that evaluates one.

SQL has three truth values, and a missing JSON field, a tombstone and an unreadable value all read as NULL. Each rule is
decided here once and documented in the guide under "NULL in expressions":

- A condition (`delete_when`, `where`, an expectation) holds only where it is TRUE.
- A key of a table's row is never NULL. A row of a batch that has such a key is refused or skipped, as the job says.
- A row of which a part of its identity is NULL is no repetition of another row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def holds(sql: str | None) -> Column:
    """A condition as true or false, never NULL. A condition that is absent does not hold."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(False) if sql is None else F.coalesce(F.expr(sql).cast("boolean"), F.lit(False))


def place() -> Column:
    """Where a record was read: `topic-partition offset N`. For error messages."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat_ws("", F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" offset "), F.col("offset"))


def refused(value: Column, is_bad: Column, why: str) -> Column:
    """A value that fails the job where `is_bad`, naming topic, partition and offset of its record."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(is_bad, F.raise_error(F.concat(place(), F.lit(f": {why}")))).otherwise(value)


def is_null_key(keys: Mapping[str, str]) -> Column:
    """Whether any of a row's keys is NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(False)
    for sql in keys.values():
        found = found | F.expr(sql).isNull()
    return found


def key_columns(rows: DataFrame, keys: Mapping[str, str]) -> list[Column]:
    """Keys that identify a row. A key that is NULL, or text that is not UTF-8, fails the job."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    for name, sql in keys.items():
        key = F.expr(sql)
        column = refused(
            key,
            key.isNull(),
            f'key "{name}" is NULL ({sql}); make it of the record\'s key, which deletions have too, give NULL a value '
            "by coalesce(...), or skip such records by null_keys: skip",
        )
        if rows.select(key).schema[0].dataType.typeName() == "string":
            why = f'key "{name}" is not UTF-8 ({sql}); use hex(key), or decode the key as what it is'
            column = F.when(key.isNull() | F.is_valid_utf8(key), column).otherwise(refused(key, F.lit(True), why))
        columns.append(column.alias(name))
    return columns


def only_itself(identity: Mapping[str, str]) -> Column:
    """NULL for a row whose identity is complete, else a value that no other row has: a row of which a part is NULL
    equals none, as in a UNIQUE constraint of SQL."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(is_null_key(identity), F.expr("uuid()"))
