"""Rows of measurements: written as JSON lines during a suite, read by the report.

Each suite has one file in `bench/results` (smoke runs in `quick` below it, Kafka against itself in `null`): the first
line is a Header, each further line a Row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

RESULTS_DIR = Path(__file__).resolve().parent / "results"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What ran, where and how."""

    suite: str
    command: str
    started_at: str
    rounds: int
    machine: dict[str, str]
    peers: dict[str, str]
    parameters: dict[str, str] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One timed section: `lane` is the broker and its setting, `case` the work; `round` counts from 0."""

    case: str
    lane: str
    round: int
    metrics: dict[str, float]


@dataclass
class Results:
    """A suite's header and rows, with their aggregates."""

    header: Header
    rows: list[Row]

    def paired(self, case: str, above: str, below: str, metric: str) -> tuple[list[float], list[float]]:
        """Return the values of two lanes in the rounds that both have, in order of rounds."""
        found: dict[str, dict[int, float]] = {above: {}, below: {}}
        for row in self.rows:
            if row.case == case and row.lane in found and metric in row.metrics:
                found[row.lane][row.round] = row.metrics[metric]
        rounds = sorted(found[above].keys() & found[below].keys())
        return [found[above][round_] for round_ in rounds], [found[below][round_] for round_ in rounds]

    def values(self, case: str, lane: str, metric: str) -> list[float]:
        """Return the values in order of rounds; empty if nothing was measured."""
        chosen = [row for row in self.rows if (row.case, row.lane) == (case, lane) and metric in row.metrics]
        return [row.metrics[metric] for row in sorted(chosen, key=lambda row: row.round)]

    def median(self, case: str, lane: str, metric: str) -> float | None:
        values = self.values(case, lane, metric)
        return statistics.median(values) if values else None

    def cases(self) -> list[str]:
        return list(dict.fromkeys(row.case for row in self.rows))

    def lanes(self, case: str) -> list[str]:
        return list(dict.fromkeys(row.lane for row in self.rows if row.case == case))


class Recorder:
    """Appends each row at once, so that an interrupted run keeps its measurements."""

    def __init__(self, directory: Path, header: Header) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{header.suite}.json"
        self.path.write_bytes(msgspec.json.encode(header) + b"\n")
        self.results = Results(header, [])

    def add(self, row: Row) -> None:
        self.results.rows.append(row)
        with self.path.open("ab") as out:
            out.write(msgspec.json.encode(row) + b"\n")


def read(path: Path) -> Results:
    """Read a results file. Raises ValueError with the file's name if it is invalid."""
    try:
        first, *rest = path.read_bytes().splitlines()
        header = msgspec.json.decode(first, type=Header)
        return Results(header, [msgspec.json.decode(line, type=Row) for line in rest])
    except (ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path} is not a results file ({error}); remove it or run its suite again") from error


def read_all(directory: Path) -> dict[str, Results]:
    return {found.header.suite: found for found in map(read, sorted(directory.glob("*.json")))}


@dataclass(frozen=True)
class Figure:
    """A summary and its spread over the rounds."""

    value: float
    low: float
    high: float


def summary(values: Sequence[float]) -> Figure | None:
    """Return median, minimum and maximum."""
    return Figure(statistics.median(values), min(values), max(values)) if values else None


def _ratio(above: Sequence[float], below: Sequence[float], value: Callable[[list[float]], float]) -> Figure | None:
    if not above or len(above) != len(below) or not all(below):
        return None
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    return Figure(value(pairs), min(pairs), max(pairs))


def ratio_of_medians(above: Sequence[float], below: Sequence[float]) -> Figure | None:
    """Return the ratio of the two medians; the spread is that of the ratios of the rounds."""
    return _ratio(above, below, lambda _pairs: statistics.median(above) / statistics.median(below))


def median_of_ratios(above: Sequence[float], below: Sequence[float]) -> Figure | None:
    """Return the median ratio of interleaved pairs, whose two sections ran right after each other."""
    return _ratio(above, below, statistics.median)
