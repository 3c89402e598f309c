"""Base of queries that report other progress than Spark does. Used by kinds of jobs that count rows themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class QueryWithProgress:
    """A query of Spark; subclasses define `recentProgress`."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    @property
    def status(self) -> dict[str, Any]:
        """The query's status."""
        return self._query.status

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends; return whether it ended within `timeout` seconds."""
        return self._query.awaitTermination(timeout)

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()
