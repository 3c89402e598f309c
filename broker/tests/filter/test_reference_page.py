"""The forms and examples of docs/reference/filters.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.filter import FilterError, RecordFilter
from penstock.wire.record import Record

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "filters.md").read_text()


def table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    first = section[section.index("\n|") :].strip().partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in first.splitlines()[2:]]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def record_of(headers: str) -> Record:
    """Return the record of an example, such as `type=order`."""
    return Record(headers=tuple((name, value.encode()) for name, _, value in map(split, headers.split())))


def split(header: str) -> tuple[str, str, str]:
    return header.partition("=")


def records_of(cell: str) -> list[Record]:
    """Return the records of a cell; "no `type`" is one without headers."""
    found = [record_of(code) for code in codes(cell) if "=" in code]
    return [*found, Record()] if "no `" in cell else found


@pytest.mark.parametrize("row", table("Examples"), ids=lambda row: row[0])
def test_an_example_of_the_page_is_true(row: list[str]) -> None:
    (text,) = codes(row[0])
    for passes, cell in ((True, row[1]), (False, row[2])):
        assert records_of(cell)
        for record in records_of(cell):
            assert RecordFilter(text).matches(record) is passes, record


@pytest.mark.parametrize("row", table("Syntax"), ids=lambda row: row[0])
def test_a_form_of_the_page_is_parsed(row: list[str]) -> None:
    for text in codes(row[0]):
        if text not in ("!=", "<", "<=", ">", ">="):
            RecordFilter(text)


def test_the_error_of_the_page_is_the_parsers() -> None:
    with pytest.raises(FilterError) as raised:
        RecordFilter("type = order")
    assert str(raised.value) in PAGE
