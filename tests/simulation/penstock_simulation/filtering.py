"""The workload with filters: records have a header by which a reader, and in some worlds the share group, select.

`cluster` draws the filters; `workload.produce` adds the headers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from penstock_simulation.workload import Plan

READER = "fr"
KIND = "kind"
KINDS: tuple[bytes | None, ...] = (b"a", b"b", b"bc", None)
"""Values of the header; None: the record does not have it."""
FILTERS: dict[str, frozenset[bytes | None]] = {
    "kind = 'a'": frozenset({b"a"}),
    "kind in ('a', 'bc')": frozenset({b"a", b"bc"}),
    "prefix(kind, 'b')": frozenset({b"b", b"bc"}),
    "exists(kind) and not kind = 'b'": frozenset({b"a", b"bc"}),
    "not (kind = 'a' or kind = 'b')": frozenset({b"bc", None}),
}
"""The kinds that pass each filter."""
QUEUE_SHARE = 0.6
"""Probability that the share group, if there is one, has a filter too."""


def draw_filters(plan: Plan, rng: random.Random, has_queue: bool) -> None:
    """Choose the filters."""
    plan.has_kinds = True
    plan.history.filters = FILTERS
    plan.filter = rng.choice(list(FILTERS))
    if has_queue and rng.random() < QUEUE_SHARE:
        plan.history.queue_filter = plan.queue_settings["share.filter"] = rng.choice(list(FILTERS))


def kind_of(value: bytes) -> bytes | None:
    """Return the kind of a record."""
    return KINDS[crc32(value) % len(KINDS)]


def headers_of(value: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record. Of repeated ones, the last counts."""
    kind = kind_of(value)
    if kind is None:
        return [("other", b"a")]
    return [(KIND, b"a"), (KIND, kind)] if crc32(value) % 3 == 0 else [(KIND, kind)]
