"""Prints the result of an audit on the terminal. Called by `run`."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from penstock_spark.jobs.kinds.audit import AuditReport

MAX_BUCKETS = 40


def print_report(report: AuditReport) -> None:
    """Print a table of partitions, a table of counts by time, and the result."""
    console = Console(width=None if Console().is_terminal else 160)
    partitions = table("partition", "records", "rows", "missing", "duplicates", "unknown", "before", "beyond", "first")
    for f in report.partitions:
        first = f.first_missing if f.first_missing is not None else f.first_duplicate
        figures = (f.records, f.rows, f.missing, f.duplicates, f.unknown, f.before, f.beyond)
        where = "-" if first is None else str(first)
        partitions.add_row(f"{f.topic}-{f.partition}", *(f"{n:,}" for n in figures), where)
    console.print(partitions)
    times = table("time", "records", "rows", "difference")
    for count in report.counts[:MAX_BUCKETS]:
        times.add_row(count.begin, f"{count.records:,}", f"{count.rows:,}", f"{count.rows - count.records:+,}")
    console.print(times)
    if len(report.counts) > MAX_BUCKETS:
        console.print(f"{len(report.counts) - MAX_BUCKETS} more rows not shown; set `report: FILE` to get all of them")
    missing, duplicates = sum(f.missing for f in report.partitions), sum(f.duplicates for f in report.partitions)
    unknown = sum(f.unknown for f in report.partitions)
    if report.is_clean:
        console.print("topic and archive agree", highlight=False)
    else:
        console.print(
            f"topic and archive differ: {missing:,} missing, {duplicates:,} duplicates, {unknown:,} unknown",
            highlight=False,
        )


def table(first: str, *others: str) -> Table:
    """Return an empty table: `first` is left-aligned and folds, the other columns are right-aligned."""
    found = Table(box=box.SIMPLE_HEAD)
    found.add_column(first, overflow="fold")
    for name in others:
        found.add_column(name, justify="right")
    return found
