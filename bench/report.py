"""Render bench/RESULTS.md: machine, versions, commands, the requirements with verdicts, and all medians."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from bench import requirements
from bench.requirements import Requirement, State, Verdict
from bench.results import Results
from bench.tables import COLUMNS, cells, metrics_of, number, spread

PATH = Path(__file__).resolve().parent / "RESULTS.md"
INTRODUCTION = """# Results

Penstock beside Apache Kafka with its default settings and librdkafka's mock broker, on one machine, in one run; the
broker, or all three of a cluster, on one core, the client on the other. Rounds alternate their order. A ratio is
Penstock's median over the base's median; its spread is that of the rounds' own ratios. How it is measured stands in
[README.md](README.md).
"""


def _table(headings: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _machine(measured: Mapping[str, Results]) -> Iterator[str]:
    facts = dict.fromkeys((key, value) for found in measured.values() for key, value in found.header.machine.items())
    yield "## Machine and versions"
    yield ""
    yield from _table(["what", "value"], [[key, value] for key, value in facts])
    versions = sorted({value for found in measured.values() for value in found.header.peers.values()})
    yield f"Measured: {', '.join(versions)}."
    yield ""


def _commands(measured: Mapping[str, Results]) -> Iterator[str]:
    yield "## Commands"
    yield ""
    rows = [
        [found.header.suite, f"`{found.header.command}`", str(found.header.rounds), found.header.started_at]
        for found in measured.values()
    ]
    yield from _table(["suite", "command", "rounds", "started"], rows)


def _value(value: float | None) -> str:
    return "" if value is None else number(value)


def _verdict_row(verdict: Verdict, null: Mapping[str, Results]) -> list[str]:
    requirement = verdict.requirement
    noise = requirements.judge(requirement, null)
    state = f"**{verdict.state.value}**" if verdict.state is State.SHORT else verdict.state.value
    return [
        requirement.name,
        f"{requirement.bound.value} {number(requirement.target)} {requirement.unit}",
        f"{number(verdict.figure.value)} {requirement.unit}" if verdict.figure else "",
        spread(verdict),
        _value(verdict.subject),
        _value(verdict.base),
        spread(noise),
        state,
    ]


def _required(verdicts: list[Verdict], null: Mapping[str, Results]) -> Iterator[str]:
    yield "## Required lines"
    yield ""
    short = [verdict for verdict in verdicts if verdict.state is State.SHORT]
    missing = [verdict for verdict in verdicts if verdict.state is State.MISSING]
    yield f"{len(verdicts)} lines: {len(short)} short, {len(missing)} not measured."
    yield "A line whose throughput is set by the client, busy at 90 % of its core or more on both sides, is marked so;"
    yield "where more than the base's throughput is asked for, that busy on Penstock's side is enough."
    if null:
        yield "The column of two equal Kafkas shows the noise: the spread of Kafka's ratio to itself."
    yield ""
    headings = ["line", "target", "measured", "spread", "Penstock", "base", "two equal Kafkas", "verdict"]
    for group, members in groupby(verdicts, key=lambda verdict: verdict.requirement.group):
        yield f"### {group}"
        yield ""
        yield from _table(headings, [_verdict_row(verdict, null) for verdict in members])


def _medians(found: Results) -> Iterator[str]:
    yield f"### {found.header.suite}"
    yield ""
    metrics = metrics_of(found)
    rows = [[case, lane, *cells(found, case, lane, metrics)] for case in found.cases() for lane in found.lanes(case)]
    yield from _table(["case", "lane", *(COLUMNS[metric].strip() for metric in metrics)], rows)


def _disturbance(measured: Mapping[str, Results]) -> Iterator[str]:
    """Yield the line about the share of a core that other processes used, including kernel threads."""
    shares = sorted(
        row.metrics["others_share_of_core"]
        for found in measured.values()
        for row in found.rows
        if "others_share_of_core" in row.metrics
    )
    if shares:
        median, worst = shares[len(shares) // 2], shares[-1]
        yield f"Everything else on the machine used {median:.0%} of a core in the median section, {worst:.0%} at most."
        yield ""


def render(measured: Mapping[str, Results], null: Mapping[str, Results]) -> tuple[str, bool]:
    """Return the report's text, and whether every requirement was measured and none is missed."""
    verdicts = [requirements.judge(requirement, measured) for requirement in _ordered()]
    lines = [INTRODUCTION, *_machine(measured), *_disturbance(measured), *_commands(measured)]
    lines += [*_required(verdicts, null), "## All medians", ""]
    for found in measured.values():
        lines += _medians(found)
    good = all(verdict.state in (State.PASS, State.CLIENT) for verdict in verdicts)
    return "\n".join(lines).rstrip() + "\n", good


def _ordered() -> list[Requirement]:
    """Return the requirements by group, in the order of each group's first one."""
    groups = list(dict.fromkeys(requirement.group for requirement in requirements.ALL))
    return sorted(requirements.ALL, key=lambda requirement: groups.index(requirement.group))


def write(measured: Mapping[str, Results], null: Mapping[str, Results]) -> tuple[Path, bool]:
    """Write the report. Return its path, and whether every requirement was measured and none is missed."""
    text, good = render(measured, null)
    PATH.write_text(text)
    return PATH, good
