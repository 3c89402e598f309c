"""Checks the demo's tables. No I/O: `scenario` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.cli.demo.tally import TallyCheck
from penstock_spark.demo import expected


@dataclass(frozen=True, slots=True)
class KillEvent:
    """The kill of the archive's driver, and what the driver had written by then."""

    pid: int
    batch: int
    """The batch in progress."""
    rows: int
    """Rows of the table's latest version."""
    uncounted_files: int
    """Files that the driver had written and no table version references."""
    produced: int
    """Flights produced by then."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The demo's results. Tables are Arrow tables; `ends` are the topic's log ends by partition."""

    data_set: pa.Table
    archive: pa.Table
    hours: pa.Table
    ends: list[int]
    kill: KillEvent | None
    committed: Mapping[str, list[int]]
    """Committed offset of each partition, by group."""

    def lag(self, group: str) -> int:
        """Return the lag of a group."""
        return sum(self.ends) - sum(self.committed[group])

    def checks(self) -> list[TallyCheck]:
        """Return all checks."""
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
    """Compare the archive with the data set and the topic."""
    flights, rows = data_set.num_rows, archive.num_rows
    produced = sum(ends)
    positions = distinct(archive, ("partition", "offset"))
    beyond = sum(
        pc.sum(pc.greater_equal(archive.filter(pc.equal(archive["partition"], n))["offset"], end)).as_py() or 0
        for n, end in enumerate(ends)
    )
    missing = produced - (positions - beyond)
    identities = distinct(archive, expected.IDENTITY)
    own = archive.select(expected.FLIGHT)
    return [
        TallyCheck("every flight is in the topic once", produced == flights, f"{produced:,} of {flights:,}"),
        TallyCheck("no (partition, offset) is missing", missing == 0 and beyond == 0, f"{missing:,} missing"),
        TallyCheck("no (partition, offset) is duplicate", positions == rows, f"{rows - positions:,} duplicates"),
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
    """Return the number of distinct rows of some columns."""
    return int(table.select(columns).group_by(list(columns)).aggregate([]).num_rows)


def hour_checks(hours: pa.Table, data_set: pa.Table) -> list[TallyCheck]:
    """Compare the table by hour with the data set."""
    by_hour = expected.by_hour(data_set)
    counted = pc.sum(hours["flights"]).as_py() or 0
    by_carrier = expected.roll_up(hours, "carrier")
    return [
        TallyCheck(
            "each hour and carrier adds up as in the data set",
            expected.same(hours, by_hour, ("window_start", "carrier", "hour")),
            f"{hours.num_rows:,} of {by_hour.num_rows:,} rows",
        ),
        TallyCheck(
            "the table by carrier equals the data set's",
            expected.same(by_carrier, expected.total(data_set, ["carrier"]), ("carrier",)),
            f"{counted:,} flights, {by_carrier.num_rows} carriers",
        ),
    ]


def kill_check(kill: KillEvent | None, flights: int) -> TallyCheck:
    """Check that the kill was between the first and the last row: otherwise it proves nothing."""
    what = "the archive's driver was killed in the middle of a batch"
    if kill is None:
        return TallyCheck(what, False, "not killed")
    return TallyCheck(what, 0 < kill.rows < flights, f"batch {kill.batch}, {kill.rows:,} rows committed")
