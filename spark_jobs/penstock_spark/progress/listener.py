"""Publishes where streaming queries stand: `penstock_spark.track(spark)`.

After each batch the ends of what it read are committed as the offsets of a group without members, so that the lag of a
query shows where the lag of any consumer does: `penstock group describe`, `kubectl get consumergroups`.
Nothing reads them back; a query's own checkpoint says where it goes on.

A source in a query learns of a batch's end only with the next batch, and knows neither name nor id of its query. Spark
tells both to listeners in the driver, at once; so the listener commits, with the options that it finds in the plan.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.client.types import TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.model.connection import Connection
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.groups import group_of
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.progress.plans import JavaQuery, sources_of
from penstock_spark.progress.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock_spark")
AT_EXIT_S = 10.0
"""For so long the end of the program waits for offsets that are not committed yet."""


class Followed:
    """A query that runs."""

    def __init__(self, query: JavaQuery) -> None:
        self.query = query
        self.sources: Mapping[str, SourceOptions] | None = None


class ProgressListener(StreamingQueryListener):
    """`spark` is a classic session, not one of Spark Connect: its plans are in reach of this process."""

    def __init__(self, spark: SparkSession, publisher: Publisher) -> None:
        self._streams = spark._jsparkSession.streams()
        self._publisher = publisher
        self._followed: dict[UUID, Followed] = {}
        self._lock = threading.Lock()
        for query in spark.streams.active:
            self._follow(UUID(query.id), UUID(query.runId))

    def flush(self, timeout_s: float = AT_EXIT_S) -> bool:
        """Whether what was published is with the brokers, after so long at most."""
        return self._publisher.flush(timeout_s)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        try:
            self._follow(event.id, event.runId)
        except Exception:  # whatever it is, it must not end the query
            log.warning("the progress of query %s is not published", event.id, exc_info=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._publish(event.progress.runId, json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._publish_last(event.runId)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        # A query that found nothing new after its restart made no event; its last progress says where it stands.
        self._publish_last(event.runId)
        with self._lock:
            self._followed.pop(event.runId, None)

    def _follow(self, query_id: UUID, run_id: UUID) -> None:
        query = self._streams.get(str(query_id))
        if query is not None:
            with self._lock:
                self._followed[run_id] = Followed(query)

    def _publish_last(self, run_id: UUID) -> None:
        followed = self._followed.get(run_id)
        progress = followed and followed.query.lastProgress()
        if progress:
            self._publish(run_id, json.loads(progress.json()))

    def _publish(self, run_id: UUID, progress: Mapping[str, Any]) -> None:
        """`progress`: as Spark's JSON has it, whose offsets are objects or text that holds them."""
        followed = self._followed.get(run_id)
        if followed is None:
            return
        try:
            if followed.sources is None:
                followed.sources = sources_of(followed.query)
            for source in progress["sources"]:
                options = followed.sources.get(source["description"])
                offsets = None if options is None else ends_of(source["endOffset"])
                if options is not None and offsets is not None:
                    group = group_of(options, progress["name"], progress["id"])
                    self._publisher.publish(options.connection, group, offsets)
        except Exception:  # whatever it is, it must not end the query
            log.warning("the progress of query %s was not published", progress.get("id"), exc_info=True)


def ends_of(end: object) -> Mapping[TopicPartition, int] | None:
    value = json.loads(end) if isinstance(end, str) else end
    return None if value is None else StreamOffset.from_json(value).offsets


def attach(spark: SparkSession) -> ProgressListener:
    """See `penstock_spark.track`."""
    if not hasattr(spark, "_jsparkSession"):
        raise PenstockSparkError(
            "progress is published from the driver's own session; this one is of Spark Connect. Call track() in the "
            "server's program, or run the job there"
        )
    with _attaching:
        listener: ProgressListener | None = getattr(spark, _ATTRIBUTE, None)
        if listener is None:
            publisher = Publisher(_commit)
            listener = ProgressListener(spark, publisher)
            spark.streams.addListener(listener)
            setattr(spark, _ATTRIBUTE, listener)
            # Links close at exit too; they were registered before, so this comes first.
            atexit.register(publisher.flush, AT_EXIT_S)
        return listener


def _commit(connection: Connection, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    Link.to(connection).commit(group, offsets)


_ATTRIBUTE = "_penstock_progress"
_attaching = threading.Lock()
