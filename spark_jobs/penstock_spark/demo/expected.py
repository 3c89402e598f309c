"""The data set read with pyarrow, and the tables that the jobs must produce from it. No Spark, no broker."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from penstock.cli.demo.flights import MEMBER, MISSING

IDENTITY = ("time_hour", "carrier", "flight")
"""Columns that identify a flight."""
NUMBERS = ("flight", "dep_delay", "arr_delay", "distance", "hour", "minute")
TEXTS = ("carrier", "tailnum", "origin", "dest")
FLIGHT = (*TEXTS, "flight", "dep_delay", "arr_delay", "distance", "hour", "time_hour", "departure")
"""Columns of an archived flight, without the archive's own."""
BY_HOUR = ("window_start", "carrier", "hour", "flights", "departed", "delay_minutes")
TIME = pa.timestamp("us", tz="UTC")
MINUTE_US = 60_000_000


def read_data_set(path: Path) -> pa.Table:
    """Return all flights with the columns `FLIGHT`."""
    types: dict[str, pa.DataType] = {name: pa.int64() for name in NUMBERS} | {name: pa.string() for name in TEXTS}
    options = csv.ConvertOptions(
        column_types=types | {"time_hour": TIME},
        include_columns=[*types, "time_hour"],
        null_values=list(MISSING),
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(path) as archive, archive.open(MEMBER) as file:
        found = csv.read_csv(file, convert_options=options)
    minutes_us = pc.multiply(found["minute"], MINUTE_US).cast(pa.duration("us"))
    return found.append_column("departure", pc.add(found["time_hour"], minutes_us)).select(FLIGHT)


class RecordIdentity(msgspec.Struct):
    """The `IDENTITY` fields of a message."""

    time_hour: datetime
    carrier: str
    flight: int


def only(flights: pa.Table, messages: Sequence[bytes]) -> pa.Table:
    """Return the flights of some messages."""
    sent = [msgspec.structs.asdict(msgspec.json.decode(message, type=RecordIdentity)) for message in messages]
    types = pa.schema([flights.schema.field(name) for name in IDENTITY])
    return flights.join(pa.Table.from_pylist(sent, schema=types), list(IDENTITY), join_type="left semi")


def by_hour(flights: pa.Table) -> pa.Table:
    """Return flights, departed flights and minutes of delay by hour of scheduled departure and carrier: `BY_HOUR`."""
    hours = pc.floor_temporal(flights["departure"], unit="hour")
    return total(flights.append_column("window_start", hours), ["window_start", "carrier", "hour"])


def total(flights: pa.Table, keys: list[str]) -> pa.Table:
    """Return the keys, flights, departed and delay_minutes of single flights."""
    found = flights.group_by(keys).aggregate([([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum")])
    sums = pc.fill_null(found["dep_delay_sum"], 0)
    return pa.table(
        {
            **{key: found[key] for key in keys},
            "flights": found["count_all"],
            "departed": found["dep_delay_count"],
            "delay_minutes": sums,
        }
    )


def roll_up(hours: pa.Table, key: str) -> pa.Table:
    """Sum a table by hour by carrier or hour of day, in the key's order."""
    figures = ["flights", "departed", "delay_minutes"]
    found = hours.group_by(key).aggregate([(figure, "sum") for figure in figures])
    return pa.table({key: found[key], **{f: found[f"{f}_sum"] for f in figures}}).sort_by(key)


def same(found: pa.Table, expected: pa.Table, keys: tuple[str, ...]) -> bool:
    """Return whether two tables have the same rows in any order; integer widths and time units may differ."""
    if found.num_rows != expected.num_rows or set(found.column_names) != set(expected.column_names):
        return False
    order = [(key, "ascending") for key in keys]
    actual = found.select(expected.column_names).cast(expected.schema).sort_by(order).combine_chunks()
    return bool(actual.equals(expected.sort_by(order).combine_chunks()))
