"""The name of the group that shows where a query stands. Called by `listener`; `jobs` says it to users."""

from __future__ import annotations

import re

from penstock_spark.options.source import MAX_GROUP_CHARS, SourceOptions

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def group_of(options: SourceOptions, query_name: str | None, query_id: str) -> str:
    """The group of the option `penstock.progress.group`, else that of `kafka.group.id`, else one made of the query's
    name, else of its id, which stays the same as long as the checkpoint does."""
    if options.progress_group is not None:
        return options.progress_group
    name = _OTHER.sub("-", query_name or "").strip("-") or query_id
    return f"{options.group_prefix}-{name}"[:MAX_GROUP_CHARS]
