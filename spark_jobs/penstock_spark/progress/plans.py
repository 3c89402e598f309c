"""Reads a streaming query's sources and checkpointed offsets from the JVM. Called by `listener`.

A progress event has each source's offsets and the JVM's name for it, which users do not know. The query's plan has the
same name with the user's options: brokers, authentication, group. Before the first batch of a run there is no event,
and none for a long time if there are no records; the checkpoint's logs, which the query holds open, have the offsets of
earlier runs. Spark exposes both to Java programs only, so this module uses py4j; it contains all such access.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.options.source import SourceOptions

log = logging.getLogger("penstock_spark")
FORMAT = "penstock"
_PLANNED = ("StreamingDataSourceV2Relation", "StreamingDataSourceV2ScanRelation")


class JavaQuery(Protocol):
    """`org.apache.spark.sql.streaming.StreamingQuery` of a classic session, through py4j."""

    def streamingQuery(self) -> Any:  # noqa: N802
        """The query's execution."""
        ...

    def lastProgress(self) -> Any:  # noqa: N802
        """The last progress, or None."""
        ...

    def name(self) -> str | None:
        """Name of the query."""
        ...

    def id(self) -> Any:
        """Id of the query."""
        ...


def sources_of(query: JavaQuery) -> Mapping[str, SourceOptions]:
    """Return the options of each source of this format, by the name that progress events use.

    Call this when the sources have made progress or finished batches: the plan is incomplete before.
    """
    found: dict[str, SourceOptions] = {}
    for leaf in _leaves(query.streamingQuery().logicalPlan()):
        if leaf.getClass().getSimpleName() not in _PLANNED:
            continue
        relation = leaf.relation() if _has(leaf, "relation") else leaf
        if FORMAT not in str(relation.table().name()).lower():
            continue
        try:
            found[leaf.stream().toString()] = SourceOptions.parse(
                dict(relation.options().asCaseSensitiveMap()), streaming=True
            )
        except PenstockSparkError as error:
            log.warning("the progress of a source is not published: %s", error)
    return found


def await_plan(query: JavaQuery, timeout_s: float) -> None:
    """Wait until the plan is complete. Raises the error of a query that ended before."""
    query.streamingQuery().awaitInitialization(int(timeout_s * 1000))


def committed_ends(query: JavaQuery) -> Mapping[str, str]:
    """Return the end offsets of the last finished batch in the checkpoint as JSON, by the name that progress events
    use. Empty if there is none, or if the query has no plan yet."""
    execution = query.streamingQuery()
    if execution.sources().isEmpty():
        return {}
    last = execution.commitLog().getLatestBatchId()
    ends = execution.offsetLog().get(last.get()) if last.isDefined() else last
    found: dict[str, str] = {}
    if ends.isDefined():
        reached = ends.get().toStreamProgress(execution.sources()).iterator()
        while reached.hasNext():
            source = reached.next()
            found[source._1().toString()] = source._2().json()
    return found


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        yield leaves.apply(number)


def _has(one: Any, method: str) -> bool:
    return any(found.getName() == method for found in one.getClass().getMethods())
