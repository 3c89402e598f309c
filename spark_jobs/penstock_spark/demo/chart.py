"""Draws the chart: flights and mean delays by hour of day, from the aggregation's table."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow as pa

from penstock_spark.demo.driver import DemoFailed
from penstock_spark.demo.expected import roll_up

SIZE_INCHES, DPI = (12.0, 6.0), 100
BARS, LINE, TEXT, FAINT = "#9db8d2", "#c2410c", "#1f2937", "#e5e7eb"


def check() -> None:
    """Raise `DemoFailed` if matplotlib is missing, before the demo starts."""
    if importlib.util.find_spec("matplotlib") is None:
        raise DemoFailed("matplotlib is missing; run `make demo` in a checkout, or `pip install matplotlib`")


def draw(hours: pa.Table, path: Path) -> None:
    """Write a PNG of 1200 by 600 pixels. `hours` is the table by hour. Raises `OSError`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    day = roll_up(hours, "hour").to_pylist()
    figure = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    flights = figure.subplots()
    delays = flights.twinx()
    x = [row["hour"] for row in day]
    flights.bar(x, [row["flights"] for row in day], width=0.78, color=BARS, label="flights", zorder=2)
    departed = [row for row in day if row["departed"]]
    means = [row["delay_minutes"] / row["departed"] for row in departed]
    delays.plot([row["hour"] for row in departed], means, color=LINE, linewidth=2.5, marker="o", markersize=6)
    flights.set_xticks(x)
    flights.set_xlabel("scheduled departure, hour of the day in New York", color=TEXT)
    flights.set_ylabel("flights", color="#476a8f")
    delays.set_ylabel("mean departure delay (minutes)", color=LINE)
    delays.set_ylim(bottom=min(0.0, *means) if means else 0.0)
    flights.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    flights.grid(axis="y", color=FAINT, zorder=0)
    for axes in (flights, delays):
        axes.tick_params(colors=TEXT, length=0)
        axes.spines[:].set_visible(False)
    count = sum(row["flights"] for row in day)
    flights.set_title(
        f"{count:,} flights from New York City in 2013, and how late they left, by hour of the day",
        loc="left", color=TEXT, fontsize=14, fontweight="bold", pad=14,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})
