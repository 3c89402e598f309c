"""How SQL expressions of a job file treat NULL. Called by every kind of job that evaluates one.

SQL has three truth values, and a missing JSON field, a tombstone and an undecodable value all read as NULL. Each rule
is implemented here once and documented in the guide under "NULL in expressions":

- A condition (`delete_when`, `where`, an expectation) holds only if it is TRUE.
- A key of a table row is never NULL. A batch row with such a key fails the job or is skipped, as the job says.
- A row with a NULL in its identity is not a duplicate of any row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def holds(sql: str | None) -> Column:
    """Return a condition as true or false, never NULL. An absent condition is false."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.lit(False) if sql is None else F.coalesce(F.expr(sql).cast("boolean"), F.lit(False))


def record_position() -> Column:
    """Return `topic-partition offset N` of a record, for error messages."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.concat_ws("", F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" offset "), F.col("offset"))


def fail_if(value: Column, is_bad: Column, why: str) -> Column:
    """Return `value`, but fail the job where `is_bad`, with the record's topic, partition and offset."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(is_bad, F.raise_error(F.concat(record_position(), F.lit(f": {why}")))).otherwise(value)


def has_null_key(keys: Mapping[str, str]) -> Column:
    """Return whether any of a row's keys is NULL."""
    from pyspark.sql import functions as F  # noqa: N812

    found = F.lit(False)
    for sql in keys.values():
        found = found | F.expr(sql).isNull()
    return found


def key_columns(rows: DataFrame, keys: Mapping[str, str]) -> list[Column]:
    """Return the key columns. A key that is NULL, or text that is not UTF-8, fails the job."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    for name, sql in keys.items():
        key = F.expr(sql)
        column = fail_if(
            key,
            key.isNull(),
            f'key "{name}" is NULL ({sql}); derive it from the record\'s key, which deletions have too, replace NULL '
            "with coalesce(...), or skip such records with null_keys: skip",
        )
        if rows.select(key).schema[0].dataType.typeName() == "string":
            why = f'key "{name}" is not UTF-8 ({sql}); use hex(key), or decode the key in its own format'
            column = F.when(key.isNull() | F.is_valid_utf8(key), column).otherwise(fail_if(key, F.lit(True), why))
        columns.append(column.alias(name))
    return columns


def unique_if_null(identity: Mapping[str, str]) -> Column:
    """Return NULL for a row with a complete identity, else a UUID.

    In the deduplication key it makes a row with a NULL in its identity unique, as a UNIQUE constraint in SQL does.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(has_null_key(identity), F.expr("uuid()"))
