"""Filters and records for tests, and what a filter means, written down as plainly as possible."""

from __future__ import annotations

import operator

from hypothesis import strategies as st

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
from penstock.wire.record import Record

NAMES = st.sampled_from(["type", "n", "a b", 'quo"te', "key", "and", "é", ""])
HEADERS = st.builds(RecordField, st.just(FieldKind.HEADER), NAMES)
TEXT_FIELDS = HEADERS | st.just(RecordField(FieldKind.KEY))
TIMESTAMP = RecordField(FieldKind.TIMESTAMP)
TEXTS = st.sampled_from(["", "a", "ab", "it's", "1", "é", "\U0001f600", "\0"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)
NUMBERS = (
    st.integers(-3, 3)
    | st.sampled_from([0.5, -0.0, 1e22, 1e-7, 10**30])
    | st.floats(allow_infinity=False, allow_nan=False)
)
LITERALS = TEXTS | NUMBERS
PREDICATES = st.one_of(
    st.builds(Comparison, TEXT_FIELDS, st.sampled_from(ComparisonOperator), LITERALS),
    st.builds(Comparison, st.just(TIMESTAMP), st.sampled_from(ComparisonOperator), NUMBERS),
    st.builds(Membership, TEXT_FIELDS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
    st.builds(Membership, st.just(TIMESTAMP), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
    st.builds(Existence, TEXT_FIELDS | st.just(TIMESTAMP)),
    st.builds(Prefix, TEXT_FIELDS, TEXTS),
)


def combined(operands: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(operands, min_size=2, max_size=3).map(tuple)
    return st.builds(Negation, operands) | st.builds(Conjunction, several) | st.builds(Disjunction, several)


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(PREDICATES, combined, max_leaves=6)
VALUES = (
    st.none()
    | st.sampled_from([b"", b"a", b"ab", b"1", b"-2", b"0.5", b"1e22", b"\xff", b" 1", b"1_0", b"nan"])
    | st.binary(max_size=3)
)
RECORDS = st.builds(
    Record,
    timestamp_ms=st.integers(-1, 3),
    key=VALUES,
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple),
)

COMPARE = {
    ComparisonOperator.EQUAL: operator.eq,
    ComparisonOperator.NOT_EQUAL: operator.ne,
    ComparisonOperator.LESS: operator.lt,
    ComparisonOperator.AT_MOST: operator.le,
    ComparisonOperator.GREATER: operator.gt,
    ComparisonOperator.AT_LEAST: operator.ge,
}


def value_of(field: RecordField, record: Record) -> bytes | int | None:
    """Return what a record has in a field: the last of repeated headers."""
    if field.kind is FieldKind.KEY:
        return record.key
    if field.kind is FieldKind.TIMESTAMP:
        return None if record.timestamp_ms < 0 else record.timestamp_ms
    return next((value for name, value in reversed(record.headers) if name == field.name), None)


def as_number(value: bytes | int | None) -> int | float | None:
    """Return the number that a value is."""
    if isinstance(value, int) or value is None:
        return value
    text = value.decode("latin-1")
    if not text or any(char not in "0123456789+-.eE" for char in text) or len(text) > 40:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number in (float("inf"), float("-inf")) else number


def compares(value: bytes | int | None, compare: ComparisonOperator, literal: Literal) -> bool:
    """Return the result of a comparison: false if there is nothing to compare."""
    if isinstance(literal, str):
        return isinstance(value, bytes) and bool(COMPARE[compare](value, literal.encode()))
    number = as_number(value)
    return number is not None and bool(COMPARE[compare](number, literal))


def holds(expression: Expression, record: Record) -> bool:
    """Return the truth of an expression."""
    match expression:
        case Comparison(field, compare, literal):
            return compares(value_of(field, record), compare, literal)
        case Membership(field, literals):
            return any(compares(value_of(field, record), ComparisonOperator.EQUAL, literal) for literal in literals)
        case Existence(field):
            if field.kind is FieldKind.HEADER:
                return any(name == field.name for name, _ in record.headers)
            return value_of(field, record) is not None
        case Prefix(field, prefix):
            value = value_of(field, record)
            return isinstance(value, bytes) and value[: len(prefix.encode())] == prefix.encode()
        case Negation(operand):
            return not holds(operand, record)
        case Conjunction(operands):
            return all(holds(operand, record) for operand in operands)
        case Disjunction(operands):
            return any(holds(operand, record) for operand in operands)
