"""The combinations of options that are compared. Times such as `NOW` are defined in `data`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from equivalence_kit.data import APPENDED, FIRST_MS, MIXED, OTHER, STEP_MS, TRANSACTIONAL, TRIMMED


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    options: dict[str, str]
    streaming: bool = False
    fails: bool = False
    """Whether both reject the options."""
    json_options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        options = self.options | {name: json.dumps(value) for name, value in self.json_options.items()}
        return asdict(self) | {"options": options}


MIDDLE_MS = FIRST_MS + 40 * STEP_MS
LATER_MS = FIRST_MS + 70 * STEP_MS
NEVER_MS = FIRST_MS + 10**10
EARLIEST = {"startingOffsets": "earliest"}
HEADERS = {"includeHeaders": "true"}
COMMITTED = {"kafka.isolation.level": "read_committed"}


def batch(name: str, topic: str, *more: dict[str, str], fails: bool = False, **json_options: Any) -> Case:
    options = {"subscribe": topic}
    for one in more:
        options |= one
    return Case(f"batch: {name}", options, fails=fails, json_options=json_options)


def stream(name: str, topic: str, *more: dict[str, str], fails: bool = False, **json_options: Any) -> Case:
    options = {"subscribe": topic}
    for one in more:
        options |= one
    return Case(f"stream: {name}", options, streaming=True, fails=fails, json_options=json_options)


CASES = [
    batch("everything there is", MIXED),
    batch("headers", MIXED, HEADERS),
    batch("two topics", f"{MIXED}, {OTHER}", HEADERS),
    Case("batch: a pattern", {"subscribePattern": "^eq-.*-(mixed|other)$"}),
    Case("batch: partitions by name", HEADERS, json_options={"assign": {MIXED: [0, 2], OTHER: [1]}}),
    batch("ends by name", MIXED, startingOffsets={MIXED: {"0": -2, "1": 5, "2": 9}},
          endingOffsets={MIXED: {"0": 20, "1": -1, "2": 11}}),
    batch("an empty range", MIXED, startingOffsets={MIXED: {"0": 3, "1": 3, "2": 3}},
          endingOffsets={MIXED: {"0": 3, "1": 3, "2": 3}}),
    batch("from a time on", MIXED, {"startingTimestamp": str(MIDDLE_MS)}),
    batch("between times", MIXED, {"startingTimestamp": str(MIDDLE_MS), "endingTimestamp": str(LATER_MS)}),
    batch("times by partition", MIXED,
          startingOffsetsByTimestamp={MIXED: {"0": MIDDLE_MS, "1": FIRST_MS, "2": MIDDLE_MS}},
          endingOffsetsByTimestamp={MIXED: {"0": LATER_MS, "1": MIDDLE_MS, "2": NEVER_MS}}),
    batch("a time wins over offsets", MIXED, {"startingTimestamp": str(LATER_MS)}, EARLIEST),
    batch("no record as young, at the end", MIXED, {"startingTimestamp": str(NEVER_MS)},
          {"startingOffsetsByTimestampStrategy": "latest"}),
    batch("no record as young, an error", MIXED, {"startingTimestamp": str(NEVER_MS)}, fails=True),
    batch("a partition not named", MIXED, startingOffsets={MIXED: {"0": 1}}, fails=True),
    batch("a topic that does not exist", "eq-there-is-none", fails=True),
    batch("more tasks than partitions", MIXED, {"minPartitions": "7"}),
    batch("few records a task", MIXED, {"maxRecordsPerPartition": "11"}),
    batch("both", MIXED, {"maxRecordsPerPartition": "25", "minPartitions": "9"}),
    batch("aborted records left out", TRANSACTIONAL, COMMITTED, HEADERS),
    batch("aborted records too", TRANSACTIONAL, HEADERS),
    batch("aborted records left out, in parts", TRANSACTIONAL, COMMITTED, {"minPartitions": "8"}),
    batch("times of the broker", APPENDED),
    batch("a log that does not begin at 0", TRIMMED),
    batch("records that are gone, and need not be there", TRIMMED, {"failOnDataLoss": "false"},
          startingOffsets={TRIMMED: {"0": 2}}),
    stream("everything there is", MIXED, EARLIEST, HEADERS),
    stream("so many a batch", MIXED, EARLIEST, {"maxOffsetsPerTrigger": "17"}),
    stream("so few that partitions would starve", f"{MIXED},{OTHER}", EARLIEST, {"maxOffsetsPerTrigger": "4"}),
    stream("from offsets on", MIXED, startingOffsets={MIXED: {"0": -2, "1": 30, "2": -1}}),
    stream("from a time on", MIXED, {"startingTimestamp": str(MIDDLE_MS)}),
    stream("a pattern", MIXED, EARLIEST, HEADERS, {"minPartitions": "5"}),
    stream("aborted records left out", TRANSACTIONAL, EARLIEST, COMMITTED, {"maxOffsetsPerTrigger": "30"}),
    stream("nothing is new", MIXED, {"startingOffsets": "latest"}),
    stream("an end", MIXED, EARLIEST, {"endingOffsets": "latest"}, fails=True),
]  # fmt: skip
