"""Publishes where streaming queries stand: `penstock_spark.track(spark)`.

After each batch the ends of what it read are committed as the offsets of a group without members, so that the lag of a
query shows where the lag of any consumer does: `penstock group describe`, `kubectl get consumergroups`.
Nothing reads them back; a query's own checkpoint says where it goes on.

When a query begins, what its checkpoint calls finished is committed first: the driver before may have died between the
end of a batch and its commit, and until the next batch has ended, or for ever where nothing comes, nothing else would
put that right.

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
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.options.source import SourceOptions
from penstock_spark.progress.groups import group_of
from penstock_spark.progress.offsets import StreamOffset
from penstock_spark.progress.plans import JavaQuery, await_plan, finished_by, sources_of
from penstock_spark.progress.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock_spark")
AT_EXIT_S = 10.0
"""For so long the end of the program waits for offsets that are not committed yet."""
PLANNED_S = 600.0
"""So long a query may take to make its plan; one that takes longer is published from its first batch on."""


Trigger = tuple[int, str]
"""Number of the batch, and when it was triggered: grows from progress to progress of a run."""
BEGINNING: Trigger = (-1, "")


class TrackedQuery:
    """A query that runs."""

    def __init__(self, query: JavaQuery) -> None:
        self.query = query
        self.sources: Mapping[str, SourceOptions] | None = None
        self.lock = threading.Lock()
        self.published: Trigger | None = None
        """None until anything of this run is."""


class ProgressListener(StreamingQueryListener):
    """`spark` is a classic session, not one of Spark Connect: its plans are in reach of this process."""

    def __init__(self, spark: SparkSession, publisher: Publisher) -> None:
        self._streams = spark._jsparkSession.streams()
        self._publisher = publisher
        self._followed: dict[UUID, TrackedQuery] = {}
        self._lock = threading.Lock()
        for query in spark.streams.active:
            self._follow(UUID(query.id), UUID(query.runId))

    def flush(self, timeout_s: float) -> bool:
        """Whether what queries have finished is with the brokers, after so long at most."""
        # Spark tells listeners of a batch a little after the query went on, or ended, and its program with it.
        for run_id in list(self._followed):
            self._publish_last(run_id)
        return self._publisher.flush(timeout_s)

    def close(self) -> None:
        """To be called when the program ends, which waits for it `AT_EXIT_S` at most."""
        self.flush(AT_EXIT_S)
        self._publisher.close()

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
        # A query that found nothing new after its restart made no event; its last progress says where it stands, or its
        # checkpoint where it failed before it had any.
        self._publish_last(event.runId)
        self._publish_beginning(event.runId)
        with self._lock:
            self._followed.pop(event.runId, None)

    def _follow(self, query_id: UUID, run_id: UUID) -> None:
        query = self._streams.get(str(query_id))
        if query is not None:
            with self._lock:
                self._followed[run_id] = TrackedQuery(query)
            # Spark waits for the event of a start before it plans the query, so its plan is waited for elsewhere.
            threading.Thread(
                target=self._publish_beginning, args=(run_id, PLANNED_S), name="penstock-progress-start", daemon=True
            ).start()

    def _publish_beginning(self, run_id: UUID, wait_s: float = 0.0) -> None:
        """What earlier runs have finished, unless this one has been published itself."""
        followed = self._followed.get(run_id)
        if followed is None or followed.published:
            return
        try:
            if wait_s:
                await_plan(followed.query, wait_s)
            if ends := finished_by(followed.query):
                name, id_ = followed.query.name(), followed.query.id().toString()
                self._publish_ends(followed, name, id_, ends, BEGINNING)
        except Exception:  # the query or its session may have ended meanwhile, and told why itself
            log.info("the beginning of a query was not published", exc_info=True)

    def _publish_last(self, run_id: UUID) -> None:
        followed = self._followed.get(run_id)
        if followed is None:
            return
        try:
            progress = followed.query.lastProgress()
            last = json.loads(progress.json()) if progress else None
        except Exception:  # the JVM may have ended before this program
            log.info("the last progress of a query could not be asked for", exc_info=True)
            return
        if last:
            self._publish(run_id, last)

    def _publish(self, run_id: UUID, progress: Mapping[str, Any]) -> None:
        """`progress`: as Spark's JSON has it, whose offsets are objects or text that holds them."""
        followed = self._followed.get(run_id)
        if followed is None:
            return
        try:
            ends = {source["description"]: source["endOffset"] for source in progress["sources"]}
            trigger = progress["batchId"], progress["timestamp"]
            self._publish_ends(followed, progress["name"], progress["id"], ends, trigger)
        except Exception:  # whatever it is, it must not end the query
            log.warning("the progress of query %s was not published", progress.get("id"), exc_info=True)

    def _publish_ends(
        self, followed: TrackedQuery, name: str | None, id_: str, ends: Mapping[str, object], trigger: Trigger
    ) -> None:
        """`ends`: by the name that the JVM has for each source. An event may come late: what is older than what was
        published would be a step back."""
        with followed.lock:
            if followed.published and trigger < followed.published:
                return
            if followed.sources is None:
                followed.sources = sources_of(followed.query)
            for source, end in ends.items():
                options = followed.sources.get(source)
                offsets = None if options is None else ends_of(end)
                if options is not None and offsets is not None:
                    self._publisher.publish(options.connection, group_of(options, name, id_), offsets)
                    followed.published = trigger


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
            listener = ProgressListener(spark, Publisher(_commit))
            spark.streams.addListener(listener)
            setattr(spark, _ATTRIBUTE, listener)
            # Links close at exit too; they were registered before, so this comes first.
            atexit.register(listener.close)
        return listener


def _commit(connection: ConnectionOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    Link.to(connection).commit(group, offsets)


_ATTRIBUTE = "_penstock_progress"
_attaching = threading.Lock()
