"""Names the group that shows a query's progress. Called by `listener` and `jobs`."""

from __future__ import annotations

import re

from penstock_spark.options.source import MAX_GROUP_CHARS, SourceOptions

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def group_of(options: SourceOptions, query_name: str | None, query_id: str) -> str:
    """Return the group of option `penstock.progress.group`, else `kafka.group.id`, else one derived from the query's
    name, else from its id, which is stable as long as the checkpoint exists."""
    if options.progress_group is not None:
        return options.progress_group
    name = _OTHER.sub("-", query_name or "").strip("-") or query_id
    return f"{options.group_prefix}-{name}"[:MAX_GROUP_CHARS]
