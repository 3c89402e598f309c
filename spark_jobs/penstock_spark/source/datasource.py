"""The data source itself: what Spark makes for `format("penstock")`, in Python processes of the driver.

Spark makes one for each load and save, and pickles it. Nothing here does I/O before a reader or writer is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from penstock_spark.model.columns import DDL, DDL_WITH_HEADERS
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.source import SourceOptions
from penstock_spark.options.text import OptionReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

NAME = "penstock"


class PenstockDataSource(DataSource):
    """Records of topics as rows of `model.columns.SCHEMA`, those of Spark's own Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        # Whether this becomes a batch or a stream is not known yet: all other options are looked at when it is.
        return DDL_WITH_HEADERS if OptionReader(self.options).take_bool("includeHeaders", False) else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock_spark.source.batch import BatchReader

        options = SourceOptions.parse(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock_spark.source.stream import StreamReader

        options = SourceOptions.parse(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock_spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock_spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def schema_of(include_headers: bool) -> StructType:
    found = StructType()
    for name, kind in (
        ("key", BinaryType()),
        ("value", BinaryType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
    ):
        found.add(name, kind)
    if include_headers:
        found.add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    return found


def _check_schema(schema: StructType, options: SourceOptions) -> None:
    wanted = schema_of(options.include_headers)
    given = [(field.name, field.dataType) for field in schema.fields]
    if given != [(field.name, field.dataType) for field in wanted.fields]:
        raise InvalidOption(
            f"rows of topics have the columns {wanted.simpleString()}; leave .schema(...) away, and parse 'value' by "
            "expressions on the DataFrame, such as from_json"
        )
