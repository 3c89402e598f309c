"""Which sources a streaming query reads, and where they stood when it began, out of the JVM. Called by `listener`.

An event of progress tells of each source its offsets and what the JVM calls it, which is no name that anybody gave it.
The query's plan has the same name, and beside it the options that the user gave: the brokers, how to log in, the group.
Before the first batch of a run there is no event at all, and none for long where there is nothing to read; what earlier
runs have finished stands in the checkpoint's logs, which the query holds open.
Spark shows both to Java programs only, so this reaches through py4j; what it needs of Spark is nowhere else.
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
    """`org.apache.spark.sql.streaming.StreamingQuery` of a classic session, behind py4j."""

    def streamingQuery(self) -> Any: ...  # noqa: N802
    def lastProgress(self) -> Any: ...  # noqa: N802
    def name(self) -> str | None: ...
    def id(self) -> Any: ...


def sources_of(query: JavaQuery) -> Mapping[str, SourceOptions]:
    """By the name that events of progress have for it, the options of each source of this format.

    To be called when the query has sources that made progress or finished batches: before, its plan is not complete.
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
    """Until its plan is complete, so long at most. Raises what ended the query before."""
    query.streamingQuery().awaitInitialization(int(timeout_s * 1000))


def finished_by(query: JavaQuery) -> Mapping[str, str]:
    """By the name that events of progress have for it, where the last batch that the checkpoint calls done ended for
    each source, as JSON; empty where none has, and where the query has no plan yet."""
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
