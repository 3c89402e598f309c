"""Counts the records that the demo's consumers report, and checks the result. No I/O; used by `scenario`."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.cli.demo.flights import Totals

Row = tuple[str, int | None]
"""(carrier, delay in minutes)"""


@dataclass(slots=True)
class PartitionTally:
    """Records of one partition by offset, with repeated and changed offsets in order of arrival."""

    rows: dict[int, Row] = field(default_factory=dict)
    repeats: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)

    def add(self, offset: int, row: Row) -> None:
        """Count a reported record."""
        if offset not in self.rows:
            self.rows[offset] = row
            return
        self.repeats.append(offset)
        if self.rows[offset] != row:
            self.changed.append(offset)


class DeliveryTally:
    """Reported records of all partitions."""

    def __init__(self, partition_count: int) -> None:
        self.partitions = [PartitionTally() for _ in range(partition_count)]
        self.by_member: dict[str, int] = {}

    def add(self, member: str, partition: int, first_offset: int, rows: list[Row]) -> None:
        """Count records with consecutive offsets."""
        tally = self.partitions[partition]
        for offset, row in enumerate(rows, first_offset):
            tally.add(offset, row)
        self.by_member[member] = self.by_member.get(member, 0) + len(rows)

    @property
    def distinct(self) -> int:
        """Return the number of distinct records."""
        return sum(len(p.rows) for p in self.partitions)

    @property
    def repeats(self) -> int:
        """Return how many records were reported again."""
        return sum(len(p.repeats) for p in self.partitions)

    def totals(self) -> Totals:
        """Return the aggregates of distinct records."""
        totals = Totals()
        for partition in self.partitions:
            for carrier, delay in partition.rows.values():
                totals.add(carrier, delay)
        return totals

    def is_complete(self, ends: list[int]) -> bool:
        """Return whether all records up to the end offsets were reported."""
        return all(len(p.rows) >= end for p, end in zip(self.partitions, ends, strict=True))


@dataclass(frozen=True, slots=True)
class TallyCheck:
    """A named check and its result."""

    what: str
    holds: bool
    found: str


def check_tally(
    tally: DeliveryTally,
    expected: Totals,
    ends: list[int],
    lost: dict[int, int],
    reported: dict[int, int],
    lag: int,
) -> list[TallyCheck]:
    """Return all checks.

    `ends` are end offsets by partition. `lost` maps the killed member's partitions to the offsets committed on the
    broker when it was killed, `reported` to the offsets it had reported as committed. `lag` is the group's lag at the
    end.
    """
    missing = sum(end - sum(offset < end for offset in p.rows) for p, end in zip(tally.partitions, ends, strict=True))
    strange = sum(offset >= end for p, end in zip(tally.partitions, ends, strict=True) for offset in p.rows)
    produced = sum(ends)
    early = [
        (number, offset)
        for number, p in enumerate(tally.partitions)
        for offset in p.repeats
        if number not in lost or offset < lost[number]
    ]
    forgotten = [p for p, offset in reported.items() if lost.get(p, 0) < offset]
    changed = sum(len(p.changed) for p in tally.partitions)
    found = tally.totals()
    flights = sum(expected.flights.values())
    return [
        TallyCheck("every flight was acknowledged once", produced == flights, f"{produced:,} of {flights:,}"),
        TallyCheck("no (partition, offset) is missing", missing == 0 and strange == 0, f"{missing:,} missing"),
        TallyCheck(
            "every repeat lies past the killed member's last commit",
            not early,
            f"{tally.repeats:,} repeats, {len(early):,} of them before it",
        ),
        TallyCheck("a repeat is the same record", changed == 0, f"{changed:,} differ"),
        TallyCheck("no commit that was acknowledged is lost", not forgotten, f"{len(forgotten):,} lost"),
        TallyCheck(
            "the table equals the data set's own, repeats removed",
            found == expected,
            f"{sum(found.flights.values()):,} flights, {len(found.flights)} carriers",
        ),
        TallyCheck("the group's lag is 0", lag == 0, f"{lag:,}"),
    ]
