"""The checks of share groups and their dead letters, which `checker` runs. Pure functions of a history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from math import inf

from penstock_simulation.filter_checks import passes
from penstock_simulation.findings import Finding, place
from penstock_simulation.history import History, Letter, Outcome, Partition, ShareAck, ShareDelivery

Position = tuple[Partition, int]
"""A partition and an offset in it."""


def delivered_again(history: History) -> Iterator[Finding]:
    """Once the answer to an acknowledgement says that a record is done, no later request acquires it."""
    done: dict[tuple[Partition, int], ShareAck] = {}
    for ack in history.acks:
        if ack.is_final and ack.outcome is Outcome.OK:
            before = done.get((ack.partition, ack.offset))
            if before is None or ack.completed_s < before.completed_s:
                done[ack.partition, ack.offset] = ack
    for delivery in history.deliveries:
        known = done.get((delivery.partition, delivery.offset))
        if known is not None and delivery.sent_s > known.completed_s:
            yield Finding(
                "delivered again",
                f"{delivery.member} acquired {place(delivery.partition, delivery.offset)} by a request of"
                f" {delivery.sent_s:.3f} s; {known.member}'s acknowledgement was answered at {known.completed_s:.3f} s",
            )


def undelivered(history: History) -> Iterator[Finding]:
    """A share group is done with a record only if it was acknowledged, or delivered as often as permitted.

    Responses may be lost, so that a broker may count up to `LOST_DELIVERIES` more than members received.
    """
    counts: dict[tuple[Partition, int], int] = defaultdict(int)
    for delivery in history.deliveries:
        key = delivery.partition, delivery.offset
        counts[key] = max(counts[key], delivery.count)
        if delivery.count > history.delivery_limit:
            yield Finding("over the limit", f"{delivery.member} got delivery {delivery.count} of {place(*key)}")
    settled = {(ack.partition, ack.offset) for ack in history.acks if ack.is_final and ack.may_apply}
    for value, key in finished(history):
        if key not in settled and not may_be_exhausted(counts[key], history):
            yield Finding("undelivered", f"the group is done with {value!r} at {place(*key)}, which none accepted")


def finished(history: History) -> Iterator[tuple[bytes, Position]]:
    """Return the values and positions of the records that the share group was done with at the end, without those that
    do not pass its filter."""
    is_selected = passes(history, history.queue_filter)
    for content in history.contents:
        end = history.queue_ends.get(content.partition, 0)
        for offset, value in content.records:
            if offset < end and is_selected(value):
                yield value, (content.partition, offset)


def may_be_exhausted(count: int, history: History) -> bool:
    """Whether a record whose highest known delivery count is `count` may have reached the limit."""
    return count + LOST_DELIVERIES >= history.delivery_limit


def too_early(history: History) -> Iterator[Finding]:
    """Once a release took effect, the record is not delivered during its back-off.

    Deliveries before the release may have higher counts: a new leader knows the counts of the last write.
    """
    releases: dict[tuple[Partition, int], list[ShareAck]] = defaultdict(list)
    for ack in history.acks if history.backoffs_s else ():
        if not ack.is_final and ack.outcome is Outcome.OK:
            releases[ack.partition, ack.offset].append(ack)
    for delivery in history.deliveries:
        for ack in releases.get((delivery.partition, delivery.offset), ()):
            until_s = ack.sent_s + history.backoffs_s[ack.count]
            if delivery.count > ack.count and ack.sent_s < delivery.received_s < until_s:
                yield Finding(
                    "too early",
                    f"{delivery.member} got delivery {delivery.count} of {place(delivery.partition, delivery.offset)}"
                    f" at {delivery.received_s:.3f} s; its back-off lasts until {until_s:.3f} s or longer",
                )


def overtaken(history: History) -> Iterator[Finding]:
    """With order by key, a record is delivered only once the earlier ones of its key are done, and not after later ones
    of its key."""
    if not history.is_ordered_by_key:
        return
    keys = {write.value: write.key for write in history.writes}
    letters = letters_of(history)
    done_s: dict[tuple[Partition, int], float] = {}
    for ack in history.acks:
        if ack.is_final and ack.may_apply:
            at = ack.partition, ack.offset
            done_s[at] = min(ack.sent_s, done_s.get(at, inf))
    received: dict[tuple[Partition, int], list[ShareDelivery]] = defaultdict(list)
    for delivery in history.deliveries:
        received[delivery.partition, delivery.offset].append(delivery)
        at = delivery.partition, delivery.offset
        if may_be_exhausted(delivery.count, history) and (letters is None or at in letters):
            done_s[at] = 0.0
    is_selected = passes(history, history.queue_filter)
    for content in history.contents:
        earlier: dict[bytes, tuple[float, int]] = {}
        for offset, value in content.records if content.partition in history.queue_ends else ():
            key, at = keys.get(value), (content.partition, offset)
            if key is None or not is_selected(value):
                continue
            since_s, before = earlier.get(key, (0.0, offset))
            for delivery in received[at]:
                if delivery.received_s < since_s:
                    yield Finding(
                        "overtaken",
                        f"{delivery.member} got {place(*at)} at {delivery.received_s:.3f} s, although no"
                        f" acknowledgement of {before}, which has its key, was sent before {since_s:.3f} s",
                    )
            earlier[key] = max((done_s.get(at, inf), offset), (since_s, before))
    yield from went_back(history, received)


def went_back(history: History, received: Mapping[Position, list[ShareDelivery]]) -> Iterator[Finding]:
    """Once a later record of its key was delivered, no request gets a record, however often it was delivered."""
    keys = {write.value: write.key for write in history.writes}
    is_selected = passes(history, history.queue_filter)
    for content in history.contents:
        later: dict[bytes, tuple[float, int]] = {}
        for offset, value in reversed(content.records):
            key, at = keys.get(value), (content.partition, offset)
            if key is None or not is_selected(value):
                continue
            since_s, after = later.get(key, (inf, offset))
            for delivery in received.get(at, ()):
                if delivery.sent_s > since_s:
                    yield Finding(
                        "overtaken",
                        f"{delivery.member} got delivery {delivery.count} of {place(*at)} by a request of"
                        f" {delivery.sent_s:.3f} s; {after}, which has its key, was delivered at {since_s:.3f} s",
                    )
            first_s = min((delivery.received_s for delivery in received.get(at, ())), default=inf)
            later[key] = min((first_s, offset), (since_s, after))


# Dead letters


def letters_of(history: History) -> dict[Position, list[Letter]] | None:
    """Return the dead letters by the position of their records; None for a group without a dead-letter topic."""
    if history.letters is None:
        return None
    found: dict[Position, list[Letter]] = defaultdict(list)
    for letter in history.letters:
        found[letter.partition, letter.offset].append(letter)
    return found


def no_letter(history: History) -> Iterator[Finding]:
    """Each record that the group is done with, and that no member may have accepted, has a dead letter."""
    letters = letters_of(history)
    if letters is None:
        return
    accepted = {(ack.partition, ack.offset) for ack in history.acks if ack.is_accepted and ack.may_apply}
    for value, key in finished(history):
        if key not in accepted and key not in letters:
            yield Finding("no letter", f"the group is done with {value!r} at {place(*key)} without a dead letter")


def two_letters(history: History) -> Iterator[Finding]:
    """No record has two dead letters."""
    for key, letters in (letters_of(history) or {}).items():
        if len(letters) > 1:
            where = " and ".join(place(*letter.position) for letter in letters)
            yield Finding("two letters", f"{place(*key)} has dead letters at {where}")


def wrong_letter(history: History) -> Iterator[Finding]:
    """A dead letter has the value of its record, if records are copied, and otherwise none."""
    contents = {content.partition: dict(content.records) for content in history.contents}
    for letter in history.letters or ():
        source = contents.get(letter.partition)
        if source is None:
            continue
        expected = source.get(letter.offset) if history.copies_letters else None
        if letter.value != expected or letter.offset not in source:
            yield Finding(
                "wrong letter",
                f"the dead letter of {place(letter.partition, letter.offset)} has {letter.value!r}, not {expected!r}",
            )


def unfounded_letter(history: History) -> Iterator[Finding]:
    """A record has a dead letter only if a member may have rejected it, or if it was delivered as often as permitted;
    never if the acceptance of a member took effect."""
    accepted = {(ack.partition, ack.offset) for ack in history.acks if ack.is_accepted and ack.outcome is Outcome.OK}
    rejected = {(ack.partition, ack.offset) for ack in history.acks if ack.is_rejected and ack.may_apply}
    counts: dict[Position, int] = defaultdict(int)
    for delivery in history.deliveries:
        key = delivery.partition, delivery.offset
        counts[key] = max(counts[key], delivery.count)
    for key in letters_of(history) or ():
        if key in accepted:
            yield Finding("unfounded letter", f"{place(*key)} was accepted, and has a dead letter")
        elif key not in rejected and not may_be_exhausted(counts[key], history):
            yield Finding(
                "unfounded letter",
                f"{place(*key)} has a dead letter after {counts[key]} deliveries without a rejection",
            )


CHECKS: tuple[Callable[[History], Iterator[Finding]], ...] = (
    delivered_again,
    undelivered,
    too_early,
    overtaken,
    no_letter,
    two_letters,
    wrong_letter,
    unfounded_letter,
)
LOST_DELIVERIES = 4
"""Deliveries of a record in a row whose responses were lost, at most."""
