"""Writes topics from Spark: at least once with an idempotent producer per task, or exactly once with one transaction
per batch. `source.datasource` gets the classes that Spark calls from here.

From the bottom: `messages`, `grants` and `attempts` decide, without I/O; `transactions` sends requests to brokers,
`batch_sender` (with `partition_lanes`) sends batches; `service` (run by `service_main`) and `service_client` are the
two sides of the transaction service, `driver` and `rendezvous` find it; `columns`, `splitting` and `task` run in tasks;
`writer` is the interface to Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


# Imported late: the transaction service's process does not need Spark.


def batch_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer for `df.write`. Raises `InvalidOption`, naming the option or the column."""
    from penstock_spark.sink import writer

    return writer.batch_writer(given, schema, overwrite)


def stream_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer for `writeStream`. Raises `InvalidOption`, naming the option or the column."""
    from penstock_spark.sink import writer

    return writer.stream_writer(given, schema, overwrite)
