"""Evaluates filters: an expression is compiled to a function once, and called for each record.

There is no third truth value. A condition on a field that the record does not have is false, and `not` inverts it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from penstock.filter.expression import (
    Comparison,
    ComparisonOperator,
    Conjunction,
    Disjunction,
    Existence,
    Expression,
    FieldKind,
    Literal,
    Membership,
    Negation,
    Prefix,
    RecordField,
)
from penstock.filter.numbers import number_of
from penstock.filter.parser import parse_expression


class FilterableRecord(Protocol):
    """What a filter reads of a record, such as `penstock.wire.record.Record`."""

    @property
    def timestamp_ms(self) -> int:
        """Time in ms since 1970, -1 for none."""

    @property
    def key(self) -> bytes | None:
        """The key."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """The names and values of the headers."""


Headers = Mapping[str, bytes | None]
"""The headers of a record by name; of repeated ones, the last."""
Predicate = Callable[[FilterableRecord, Headers], bool]
ReadBytes = Callable[[FilterableRecord, Headers], bytes | None]
ReadNumber = Callable[[FilterableRecord, Headers], int | float | None]

OPERATIONS: dict[ComparisonOperator, Callable[[Any, Any], bool]] = {
    ComparisonOperator.EQUAL: operator.eq,
    ComparisonOperator.NOT_EQUAL: operator.ne,
    ComparisonOperator.LESS: operator.lt,
    ComparisonOperator.AT_MOST: operator.le,
    ComparisonOperator.GREATER: operator.gt,
    ComparisonOperator.AT_LEAST: operator.ge,
}


class RecordFilter:
    """A filter of records. Two filters with equal text are equal."""

    __slots__ = ("_predicate", "text")

    def __init__(self, text: str) -> None:
        """Raises FilterError."""
        self.text = text
        self._predicate = predicate_of(parse_expression(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordFilter) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"RecordFilter({self.text!r})"

    def matches(self, record: FilterableRecord) -> bool:
        """Return whether a record passes."""
        return self._predicate(record, dict(record.headers))


@lru_cache(maxsize=256)
def compile_filter(text: str) -> RecordFilter:
    """Return the filter with the text; recent ones are kept. Raises FilterError."""
    return RecordFilter(text)


def predicate_of(expression: Expression) -> Predicate:
    """Compile an expression."""
    match expression:
        case Comparison(field, operation, literal):
            return comparison(field, OPERATIONS[operation], literal)
        case Membership(field, literals):
            return membership(field, literals)
        case Existence(field):
            return existence(field)
        case Prefix(field, prefix):
            return prefix_test(bytes_of(field), prefix.encode())
        case Negation(operand):
            return negation(predicate_of(operand))
        case Conjunction(operands):
            return conjunction([predicate_of(operand) for operand in operands])
        case Disjunction(operands):
            return disjunction([predicate_of(operand) for operand in operands])


def bytes_of(field: RecordField) -> ReadBytes:
    """Return the function that reads a header or the key; None is a missing one, and one without a value."""
    if field.kind is FieldKind.KEY:
        return lambda record, headers: record.key
    assert field.kind is FieldKind.HEADER, "the timestamp is a number"
    name = field.name
    return lambda record, headers: headers.get(name)


def number_in(field: RecordField) -> ReadNumber:
    """Return the function that reads a field as a number; None if it is missing or no number."""
    if field.kind is FieldKind.TIMESTAMP:
        return lambda record, headers: record.timestamp_ms if record.timestamp_ms >= 0 else None
    read = bytes_of(field)

    def read_number(record: FilterableRecord, headers: Headers) -> int | float | None:
        value = read(record, headers)
        return None if value is None else number_of(value)

    return read_number


def comparison(field: RecordField, compare: Callable[[Any, Any], bool], literal: Literal) -> Predicate:
    """Compare as numbers with a number, and as bytes with a text: UTF-8 has the order of the characters."""
    read: ReadBytes | ReadNumber = bytes_of(field) if isinstance(literal, str) else number_in(field)
    expected = literal.encode() if isinstance(literal, str) else literal

    def compare_value(record: FilterableRecord, headers: Headers) -> bool:
        value = read(record, headers)
        return value is not None and compare(value, expected)

    return compare_value


def membership(field: RecordField, literals: tuple[Literal, ...]) -> Predicate:
    """Test whether a field is one of the literals, in constant time."""
    texts = frozenset(literal.encode() for literal in literals if isinstance(literal, str))
    numbers = frozenset(literal for literal in literals if not isinstance(literal, str))
    read_number = number_in(field)
    has_number: Predicate = lambda record, headers: read_number(record, headers) in numbers  # noqa: E731
    if not texts:
        return has_number
    read = bytes_of(field)
    has_text: Predicate = lambda record, headers: read(record, headers) in texts  # noqa: E731
    return disjunction([has_text, has_number]) if numbers else has_text


def existence(field: RecordField) -> Predicate:
    """Test whether a record has a field. A header without a value exists."""
    if field.kind is FieldKind.HEADER:
        name = field.name
        return lambda record, headers: name in headers
    if field.kind is FieldKind.KEY:
        return lambda record, headers: record.key is not None
    return lambda record, headers: record.timestamp_ms >= 0


def prefix_test(read: ReadBytes, prefix: bytes) -> Predicate:
    """Test whether a field starts with a prefix."""

    def starts_with(record: FilterableRecord, headers: Headers) -> bool:
        value = read(record, headers)
        return value is not None and value.startswith(prefix)

    return starts_with


def negation(operand: Predicate) -> Predicate:
    """Invert a condition."""
    return lambda record, headers: not operand(record, headers)


def conjunction(operands: list[Predicate]) -> Predicate:
    """Test whether all conditions hold."""

    def hold_all(record: FilterableRecord, headers: Headers) -> bool:
        for operand in operands:  # noqa: SIM110  # faster than a generator
            if not operand(record, headers):
                return False
        return True

    return hold_all


def disjunction(operands: list[Predicate]) -> Predicate:
    """Test whether any condition holds."""

    def hold_any(record: FilterableRecord, headers: Headers) -> bool:
        for operand in operands:  # noqa: SIM110  # faster than a generator
            if operand(record, headers):
                return True
        return False

    return hold_any
