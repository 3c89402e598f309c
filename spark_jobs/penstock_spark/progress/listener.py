"""Publishes the progress of streaming queries: `penstock_spark.track(spark)`.

After each batch the end offsets of its sources are committed for a group without members, so that a query's lag is
shown like that of any consumer: `penstock group describe`, `kubectl get consumergroups`. The committed offsets are not
read back; a query continues from its checkpoint.

When a query starts, the offsets of the last finished batch in its checkpoint are committed first: the driver before may
have died between the end of a batch and its commit. Otherwise the group would be wrong until the next batch ends, or
forever if no records arrive.

A source learns of a batch's end only with the next batch, and does not know its query's name or id. Spark reports both
to listeners in the driver at once, so the listener commits, with the options that it finds in the query's plan.
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

from penstock.client import TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.groups import group_of
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.progress.plans import JavaQuery, await_plan, committed_ends, sources_of
from penstock_spark.progress.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock_spark")
EXIT_FLUSH_TIMEOUT_S = 10.0
"""Time that the end of the program waits for uncommitted offsets."""
PLAN_TIMEOUT_S = 600.0
"""Time for a query to create its plan; the progress of a slower one is published from its first batch on."""


Trigger = tuple[int, str]
"""Number and trigger time of a batch; increases from progress to progress of a run."""
BEFORE_FIRST: Trigger = (-1, "")


class TrackedQuery:
    """A running query."""

    def __init__(self, query: JavaQuery) -> None:
        self.query = query
        self.sources: Mapping[str, SourceOptions] | None = None
        self.lock = threading.Lock()
        self.published: Trigger | None = None
        """Trigger of the last published progress; None before the first of this run."""


class ProgressListener(StreamingQueryListener):
    """Commits the progress of a session's queries. `spark` must be a classic session: Spark Connect hides the plans."""

    def __init__(self, spark: SparkSession, publisher: Publisher) -> None:
        self._streams = spark._jsparkSession.streams()
        self._publisher = publisher
        self._tracked: dict[UUID, TrackedQuery] = {}
        self._lock = threading.Lock()
        for query in spark.streams.active:
            self._track(UUID(query.id), UUID(query.runId))

    def flush(self, timeout_s: float) -> bool:
        """Publish the finished batches; return whether the brokers have all of them within `timeout_s`."""
        # Spark reports a batch to listeners after the query has continued, or ended, and the program with it.
        for run_id in list(self._tracked):
            self._publish_last(run_id)
        return self._publisher.flush(timeout_s)

    def close(self) -> None:
        """Flush at the end of the program, for at most `EXIT_FLUSH_TIMEOUT_S`."""
        self.flush(EXIT_FLUSH_TIMEOUT_S)
        self._publisher.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Track a query that starts; called by Spark."""
        try:
            self._track(event.id, event.runId)
        except Exception:  # no error may end the query
            log.warning("the progress of query %s is not published", event.id, exc_info=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Publish a finished batch; called by Spark."""
        self._publish(event.progress.runId, json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Publish the last finished batch; called by Spark."""
        self._publish_last(event.runId)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Publish the end of a query; called by Spark."""
        # A query that found nothing new after its restart sent no event; its last progress has its offsets, or its
        # checkpoint if it failed before it had any.
        self._publish_last(event.runId)
        self._publish_start(event.runId)
        with self._lock:
            self._tracked.pop(event.runId, None)

    def _track(self, query_id: UUID, run_id: UUID) -> None:
        query = self._streams.get(str(query_id))
        if query is not None:
            with self._lock:
                self._tracked[run_id] = TrackedQuery(query)
            # Spark plans the query only after this event is handled, so another thread waits for the plan.
            threading.Thread(
                target=self._publish_start, args=(run_id, PLAN_TIMEOUT_S), name="penstock-progress-start", daemon=True
            ).start()

    def _publish_start(self, run_id: UUID, wait_s: float = 0.0) -> None:
        """Publish what earlier runs have finished, unless this run has published already."""
        tracked = self._tracked.get(run_id)
        if tracked is None or tracked.published:
            return
        try:
            if wait_s:
                await_plan(tracked.query, wait_s)
            if ends := committed_ends(tracked.query):
                name, id_ = tracked.query.name(), tracked.query.id().toString()
                self._publish_ends(tracked, name, id_, ends, BEFORE_FIRST)
        except Exception:  # the query or its session may have ended, and reports its own error
            log.info("the start of a query is not published", exc_info=True)

    def _publish_last(self, run_id: UUID) -> None:
        tracked = self._tracked.get(run_id)
        if tracked is None:
            return
        try:
            progress = tracked.query.lastProgress()
            last = json.loads(progress.json()) if progress else None
        except Exception:  # the JVM may have ended before this program
            log.info("cannot read the last progress of a query", exc_info=True)
            return
        if last:
            self._publish(run_id, last)

    def _publish(self, run_id: UUID, progress: Mapping[str, Any]) -> None:
        """Publish a progress document. Its offsets are JSON objects, or text that holds them."""
        tracked = self._tracked.get(run_id)
        if tracked is None:
            return
        try:
            ends = {source["description"]: source["endOffset"] for source in progress["sources"]}
            trigger = progress["batchId"], progress["timestamp"]
            self._publish_ends(tracked, progress["name"], progress["id"], ends, trigger)
        except Exception:  # no error may end the query
            log.warning("the progress of query %s is not published", progress.get("id"), exc_info=True)

    def _publish_ends(
        self, tracked: TrackedQuery, name: str | None, id_: str, ends: Mapping[str, object], trigger: Trigger
    ) -> None:
        """Publish end offsets by the JVM's source names. An event that is older than the published one is ignored."""
        with tracked.lock:
            if tracked.published and trigger < tracked.published:
                return
            if tracked.sources is None:
                tracked.sources = sources_of(tracked.query)
            for source, end in ends.items():
                options = tracked.sources.get(source)
                offsets = None if options is None else ends_of(end)
                if options is not None and offsets is not None:
                    self._publisher.publish(options.connection, group_of(options, name, id_), offsets)
                    tracked.published = trigger


def ends_of(end: object) -> Mapping[TopicPartition, int] | None:
    """Return the offsets of an end offset, which may be JSON text."""
    value = json.loads(end) if isinstance(end, str) else end
    return None if value is None else StreamOffset.from_json(value).offsets


def attach(spark: SparkSession) -> ProgressListener:
    """Return the listener of a session; see `penstock_spark.track`."""
    if not hasattr(spark, "_jsparkSession"):
        raise PenstockSparkError(
            "cannot track progress of a Spark Connect session; call track() in the server's program, or run "
            "the job there"
        )
    with _attaching:
        listener: ProgressListener | None = getattr(spark, _ATTRIBUTE, None)
        if listener is None:
            listener = ProgressListener(spark, Publisher(_commit))
            spark.streams.addListener(listener)
            setattr(spark, _ATTRIBUTE, listener)
            # Links close at exit too. They were registered earlier, so this runs first.
            atexit.register(listener.close)
        return listener


def _commit(connection: ConnectionOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    Link.to(connection).commit(group, offsets)


_ATTRIBUTE = "_penstock_progress"
_attaching = threading.Lock()
