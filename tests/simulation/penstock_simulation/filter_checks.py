"""The check of filters, which `checker` runs, and what passes them. Pure functions of a history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock_simulation.findings import Finding, place
from penstock_simulation.history import History

Passes = Callable[[bytes], bool]
"""Whether the record with a value passes a filter."""


def passes(history: History, text: str) -> Passes:
    """Return which values pass the filter with a text; all, if it is empty."""
    if not text:
        return lambda value: True
    kinds = {write.value: write.kind for write in history.writes}
    passing = history.filters[text]
    return lambda value: kinds.get(value) in passing


def filtered_wrongly(history: History) -> Iterator[Finding]:
    """Readers and members of the share group receive only records that pass their filter."""
    found = {text: passes(history, text) for text in {seen.filter for seen in history.seen}}
    for seen in history.seen:
        if not found[seen.filter](seen.value):
            where = place(seen.partition, seen.offset)
            yield Finding("filtered wrongly", f"{seen.reader} got {seen.value!r} at {where} by {seen.filter!r}")
    is_for_group = passes(history, history.queue_filter)
    for delivery in history.deliveries:
        if not is_for_group(delivery.value):
            where = place(delivery.partition, delivery.offset)
            yield Finding("filtered wrongly", f"{delivery.member} got {delivery.value!r} at {where}")


CHECKS: tuple[Callable[[History], Iterator[Finding]], ...] = (filtered_wrongly,)
