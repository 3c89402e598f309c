"""Which sources a streaming query reads, out of its plan in the JVM. Called by `listener`.

An event of progress tells of each source its offsets and what the JVM calls it, which is no name that anybody gave it.
The query's plan has the same name, and beside it the options that the user gave: the brokers, how to log in, the group.
Spark shows the plan to Java programs only, so this reaches through py4j; what it needs of Spark is nowhere else.
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


def sources_of(query: JavaQuery) -> Mapping[str, SourceOptions]:
    """By the name that events of progress have for it, the options of each source of this format.

    To be called when the query has made progress: before, its plan is not complete.
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


def _leaves(plan: Any) -> Iterator[Any]:
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        yield leaves.apply(number)


def _has(one: Any, method: str) -> bool:
    return any(found.getName() == method for found in one.getClass().getMethods())
