"""Tables on the terminal: measured figures and the verdicts on requirements."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from bench import requirements
from bench.requirements import State, Verdict
from bench.results import Results

# Metrics with a column, in this order, if a suite has them.
COLUMNS = {
    "cpu_s_per_million": "CPU s/M",
    "mb_per_s": "MB/s",
    "messages_per_s": "msg/s",
    "rows_per_s": "rows/s",
    "messages_per_request": "msg/req",
    "client_share_of_core": "client core",
    "others_share_of_core": "others",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "p999_ms": "p99.9 ms",
    "produce_p50_ms": "produce p50",
    "produce_p99_ms": "p99",
    "produce_p999_ms": "p99.9",
    "end_to_end_p50_ms": "end to end p50",
    "end_to_end_p99_ms": "p99 ",
    "end_to_end_p999_ms": "p99.9 ",
    "late_p50_ms": "late p50 ms",
    "late_p99_ms": "late p99 ms",
    "lagging_mb_per_s": "MB/s behind",
    "batches_per_s": "batches/s",
    "seconds": "seconds",
    "broker_cpu_s": "CPU s",
    "cluster_cpu_s": "CPU s ",
    "cores": "cores",
    "with_session_s": "with session",
    "joining_s": "s to join",
    "moved_partitions": "moved",
    "median_s": "median s",
    "led_by_victim_s": "led by it",
    "led_by_others_s": "led by others",
    "ending_s": "s to end",
    "busiest_share_of_core": "busiest core",
    "store_share_of_core": "etcd core",
    "commits_per_s": "commits/s",
    "empty_mb": "MB empty",
    "resident_mb": "MB resident",
    "mb_per_thousand": "MB per 1,000 partitions",
    "peak_mb": "MB peak",
    "capacity_mb_per_s": "capacity MB/s",
    "acknowledged_mb_per_s": "acked MB/s",
    "offered_over_acknowledged": "offered / acked",
    "most_under_way_mb": "MB under way",
    "acknowledged": "acked",
    "lost": "lost",
    "baseline_ms": "baseline ms",
    "time_to_normal_s": "s to normal",
}
STYLES = {State.PASS: "green", State.SHORT: "bold red", State.CLIENT: "yellow", State.MISSING: "dim"}


def number(value: float) -> str:
    """Format with three significant digits; whole numbers have separators."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def metrics_of(found: Results) -> list[str]:
    present = {name for row in found.rows for name in row.metrics}
    return [name for name in COLUMNS if name in present]


def cells(found: Results, case: str, lane: str, metrics: list[str]) -> list[str]:
    medians = [found.median(case, lane, metric) for metric in metrics]
    return ["" if median is None else number(median) for median in medians]


def show_measured(console: Console, found: Results) -> None:
    """Print the medians of each case and lane."""
    metrics = metrics_of(found)
    table = Table(title=f"{found.header.suite}: medians of {found.header.rounds} rounds")
    for heading in ("case", "lane", *(COLUMNS[metric] for metric in metrics)):
        table.add_column(heading, justify="left" if heading in ("case", "lane") else "right")
    for case in found.cases():
        for lane in found.lanes(case):
            table.add_row(case, lane, *cells(found, case, lane, metrics))
        table.add_section()
    console.print(table)


def spread(verdict: Verdict) -> str:
    figure = verdict.figure
    return f"{number(figure.low)} .. {number(figure.high)}" if figure else ""


def show_verdicts(console: Console, measured: Mapping[str, Results]) -> None:
    """Print every requirement of the suites that ran."""
    table = Table(title="Required")
    for heading in ("line", "target", "measured", "spread", "verdict"):
        table.add_column(heading, justify="left" if heading in ("line", "verdict") else "right")
    for requirement in requirements.ALL:
        if requirement.suite in measured:
            verdict = requirements.judge(requirement, measured)
            value = number(verdict.figure.value) if verdict.figure else ""
            table.add_row(
                f"{requirement.group}: {requirement.name}",
                f"{requirement.bound.value} {number(requirement.target)} {requirement.unit}",
                value,
                spread(verdict),
                verdict.state.value,
                style=STYLES[verdict.state],
            )
    console.print(table)
