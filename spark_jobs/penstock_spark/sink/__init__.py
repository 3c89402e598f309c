"""Writing topics from Spark: at least once with an idempotent producer for each task, or exactly once with one
transaction for each batch. `source.datasource` asks here for the classes that Spark calls.

From the bottom: `messages`, `grants` and `attempts` decide, without I/O; `transactions` speaks with brokers, `sending`
(with `lanes`) takes batches to them; `service` (a process: `service_main`) and `service_client` are the two sides of
the transaction service, `driver` and `rendezvous` find it; `columns`, `splitting` and `task` are a task's work,
`writer` is what Spark sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


# Imported late: the service's process has no use for Spark.


def batch_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """For `df.write`. Raises `InvalidOption`, naming the option or the column."""
    from penstock_spark.sink import writer

    return writer.batch_writer(given, schema, overwrite)


def stream_writer(given: Mapping[str, Any], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """For `writeStream`. Raises `InvalidOption`, naming the option or the column."""
    from penstock_spark.sink import writer

    return writer.stream_writer(given, schema, overwrite)
