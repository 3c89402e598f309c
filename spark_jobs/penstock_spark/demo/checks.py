"""Whether the demo's tables are right. No I/O: `story` reads, this compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.cli.demo.tally import TallyCheck
from penstock_spark.demo import expected


@dataclass(frozen=True, slots=True)
class KillEvent:
    """How the archive's driver was killed, and what it had written by then."""

    pid: int
    batch: int
    """The batch that it was in."""
    rows: int
    """Rows of the table's newest version."""
    uncounted_files: int
    """Files that it had written and that no version of the table names."""
    produced: int
    """Flights that had been produced."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What the demo found. Tables are Arrow's; `ends` are the topic's, by partition."""

    data_set: pa.Table
    archive: pa.Table
    hours: pa.Table
    ends: list[int]
    kill: KillEvent | None
    committed: Mapping[str, list[int]]
    """By group: the committed offset of each partition."""

    def lag(self, group: str) -> int:
        return sum(self.ends) - sum(self.committed[group])

    def checks(self) -> list[TallyCheck]:
        return [
            *archive_checks(self.archive, self.data_set, self.ends),
            *hour_checks(self.hours, self.data_set),
            kill_check(self.kill, self.data_set.num_rows),
            *(
                TallyCheck(f"the lag of group {group} is 0", self.lag(group) == 0, f"{self.lag(group):,}")
                for group in self.committed
            ),
        ]


def archive_checks(archive: pa.Table, data_set: pa.Table, ends: list[int]) -> list[TallyCheck]:
    flights, rows = data_set.num_rows, archive.num_rows
    produced = sum(ends)
    places = distinct(archive, ("partition", "offset"))
    beyond = sum(
        pc.sum(pc.greater_equal(archive.filter(pc.equal(archive["partition"], n))["offset"], end)).as_py() or 0
        for n, end in enumerate(ends)
    )
    lacking = produced - (places - beyond)
    identities = distinct(archive, expected.IDENTITY)
    own = archive.select(expected.FLIGHT)
    return [
        TallyCheck("every flight is in the topic once", produced == flights, f"{produced:,} of {flights:,}"),
        TallyCheck("no (partition, offset) lacks in the archive", lacking == 0 and beyond == 0, f"{lacking:,} lack"),
        TallyCheck("no (partition, offset) is there twice", places == rows, f"{rows - places:,} repeats"),
        TallyCheck(
            "every flight is in the archive once", identities == rows == flights, f"{identities:,} of {flights:,}"
        ),
        TallyCheck(
            "the archive's rows equal the data set's",
            expected.same(own, data_set, expected.IDENTITY),
            f"{rows:,} rows, {len(expected.FLIGHT)} columns",
        ),
    ]


def distinct(table: pa.Table, columns: tuple[str, ...]) -> int:
    return int(table.select(columns).group_by(list(columns)).aggregate([]).num_rows)


def hour_checks(hours: pa.Table, data_set: pa.Table) -> list[TallyCheck]:
    wanted = expected.by_hour(data_set)
    counted = pc.sum(hours["flights"]).as_py() or 0
    by_carrier = expected.roll_up(hours, "carrier")
    return [
        TallyCheck(
            "each hour and carrier adds up as in the data set",
            expected.same(hours, wanted, ("window_start", "carrier", "hour")),
            f"{hours.num_rows:,} of {wanted.num_rows:,} rows",
        ),
        TallyCheck(
            "the table by carrier equals the data set's",
            expected.same(by_carrier, expected.total(data_set, ["carrier"]), ("carrier",)),
            f"{counted:,} flights, {by_carrier.num_rows} carriers",
        ),
    ]


def kill_check(kill: KillEvent | None, flights: int) -> TallyCheck:
    """A kill before the first row, or after the last, would prove nothing."""
    what = "the archive's driver was killed in the middle of a batch"
    if kill is None:
        return TallyCheck(what, False, "not killed")
    return TallyCheck(what, 0 < kill.rows < flights, f"batch {kill.batch}, {kill.rows:,} rows counted")
