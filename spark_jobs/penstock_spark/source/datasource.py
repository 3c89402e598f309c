"""The data source that Spark creates for `format("penstock")`, in Python processes of the driver.

Spark creates one for each load and save, and pickles it. It does no I/O before it creates a reader or writer.
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
    """Records of topics as rows of `model.columns.SCHEMA`, the schema of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the schema as DDL."""
        # The mode (batch or stream) is not known yet; the other options are checked when it is.
        return DDL_WITH_HEADERS if OptionReader(self.options).pop_bool("includeHeaders", False) else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises `InvalidOption`."""
        from penstock_spark.source.batch import BatchReader

        options = SourceOptions.parse(self.options, streaming=False)
        _check_schema(schema, options)
        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query. Raises `InvalidOption`."""
        from penstock_spark.source.stream import StreamReader

        options = SourceOptions.parse(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query. Raises `InvalidOption`."""
        from penstock_spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a streaming query. Raises `InvalidOption`."""
        from penstock_spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def schema_of(include_headers: bool) -> StructType:
    """Return the schema as Spark type."""
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
    expected = schema_of(options.include_headers)
    given = [(field.name, field.dataType) for field in schema.fields]
    if given != [(field.name, field.dataType) for field in expected.fields]:
        raise InvalidOption(
            f'topics have the columns {expected.simpleString()}; remove .schema(...), and parse "value" with '
            "expressions on the DataFrame, such as from_json"
        )
