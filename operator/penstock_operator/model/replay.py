"""The replay of a group's dead letters in a `ConsumerGroup`: its specification and its status."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from penstock_operator.model.common import MAX_TOPIC_NAME, Model, topic_name_rule
from penstock_operator.model.fields import Rule, doc, unchanged

MAX_ID_CHARS = 100
MAX_REASON_CHARS = 200
MAX_RATE_PER_S = 100_000
TIMESTAMP = (
    "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    "T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
ReplayPhase = Literal["Planned", "Running", "Done", "Refused", "Failed"]


def timestamp_rule(field: str) -> Rule:
    """Return the rule of a field with a time."""
    return Rule(
        f"self.matches('{TIMESTAMP}')",
        f"{field} must be an RFC 3339 date and time with a time zone, such as 2026-11-21T08:00:00Z",
    )


def parse_timestamp_ms(text: str) -> int:
    """Return an RFC 3339 time in ms since the epoch. Raises `ValueError` if it is none."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f'"{text}" has no time zone')
    return int(at.timestamp() * 1000)


class DeadLetterReplay(Model, frozen=True, kw_only=True):
    """A replay of dead letters, done once per `id`."""

    rules = (
        Rule(
            "!has(self.since) || !has(self.until) || timestamp(self.since) < timestamp(self.until)",
            "since must be before until: the replay would select no letter",
        ),
        Rule(
            "self.id != oldSelf.id || (" + unchanged("topic", "reason", "since", "until", "to") + ")",
            "a replay is done once per id: set a new id for the changed replay",
        ),
    )

    id: Annotated[
        str,
        doc(
            "Name of this replay, such as a date. The operator does a replay once per id, however often the manifest is"
            " applied.",
            min_length=1,
            max_length=MAX_ID_CHARS,
        ),
    ]
    topic: (
        Annotated[
            str,
            doc(
                "Only letters of records of this topic.",
                topic_name_rule("a topic name"),
                min_length=1,
                max_length=MAX_TOPIC_NAME,
            ),
        ]
        | None
    ) = None
    reason: (
        Annotated[
            str,
            doc("Only letters whose reason contains this text.", min_length=1, max_length=MAX_REASON_CHARS),
        ]
        | None
    ) = None
    since: (
        Annotated[
            str, doc("Only letters written at or after this time, in RFC 3339.", timestamp_rule("since"), max_length=35)
        ]
        | None
    ) = None
    until: (
        Annotated[
            str, doc("Only letters written before this time, in RFC 3339.", timestamp_rule("until"), max_length=35)
        ]
        | None
    ) = None
    to: (
        Annotated[
            str,
            doc(
                "Topic to send the records to. Default: their own topics.",
                topic_name_rule("a topic name"),
                min_length=1,
                max_length=MAX_TOPIC_NAME,
            ),
        ]
        | None
    ) = None
    rate: Annotated[
        int,
        doc(
            "Maximum number of letters per second.",
            Rule(f"self >= 1 && self <= {MAX_RATE_PER_S}", f"rate must be 1 to {MAX_RATE_PER_S} letters per second"),
            ge=1,
            le=MAX_RATE_PER_S,
        ),
    ] = 100
    dry_run: Annotated[
        bool,
        doc(
            "If true, the operator counts the letters and replays none. Setting it to false with the same id replays"
            " the letters that it counted."
        ),
    ] = False

    @property
    def since_ms(self) -> int | None:
        """`since` in ms since the epoch. Raises `ValueError` if it is not an RFC 3339 time."""
        return None if self.since is None else parse_timestamp_ms(self.since)

    @property
    def until_ms(self) -> int | None:
        """`until` in ms since the epoch. Raises `ValueError` if it is not an RFC 3339 time."""
        return None if self.until is None else parse_timestamp_ms(self.until)


class ReplayStatus(Model, frozen=True, kw_only=True):
    """Progress or result of the newest replay."""

    id: Annotated[str, doc("Id of the replay.")]
    phase: Annotated[ReplayPhase, doc("Phase of the replay. Planned: counted by `dryRun`, or paused.")]
    message: Annotated[str, doc("Human-readable details.")] = ""
    topic: Annotated[str, doc("The dead-letter topic.")] | None = None
    replayed: Annotated[int, doc("Number of letters whose records were sent again.")] = 0
    skipped: Annotated[int, doc("Number of letters that the filters left out; later replays can select them.")] = 0
    without_record: Annotated[
        int, doc("Number of selected letters that lack the original record, and cannot be replayed.")
    ] = 0
    remaining: Annotated[int, doc("Number of letters that the replay has not reached yet.")] | None = None
    end_offsets: Annotated[
        tuple[int, ...],
        doc(
            "By partition of the dead-letter topic: the offset where the replay ends. Later letters are not part of it."
        ),
    ] = ()
