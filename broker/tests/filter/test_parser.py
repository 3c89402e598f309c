"""Filters are parsed with bounds on length, depth and size; errors name position, what was found and expected."""

from __future__ import annotations

import contextlib

import pytest
from filter_kit import EXPRESSIONS
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.filter.expression import (
    Comparison,
    ComparisonOperator,
    Conjunction,
    Disjunction,
    Existence,
    Expression,
    FieldKind,
    Membership,
    Negation,
    Prefix,
    RecordField,
)
from penstock.filter.lexer import MAX_FILTER_CHARS, FilterError
from penstock.filter.parser import MAX_DEPTH, MAX_LITERALS, MAX_PREDICATES, parse_expression


def header(name: str) -> RecordField:
    return RecordField(FieldKind.HEADER, name)


A, B, C = (Existence(header(name)) for name in "abc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("type = 'it''s'", Comparison(header("type"), ComparisonOperator.EQUAL, "it's")),
        ("penstock-deliver-at>=-5", Comparison(header("penstock-deliver-at"), ComparisonOperator.AT_LEAST, -5)),
        ('"a ""b""" != .5', Comparison(header('a "b"'), ComparisonOperator.NOT_EQUAL, 0.5)),
        ('"key" < 1', Comparison(header("key"), ComparisonOperator.LESS, 1)),
        ("KEY <= '1'", Comparison(RecordField(FieldKind.KEY), ComparisonOperator.AT_MOST, "1")),
        ("timestamp > 1e3", Comparison(RecordField(FieldKind.TIMESTAMP), ComparisonOperator.GREATER, 1000.0)),
        ("r IN ('eu', 5)", Membership(header("r"), ("eu", 5))),
        ("prefix(type, 'order.')", Prefix(header("type"), "order.")),
        ("not exists(a)", Negation(A)),
        ("exists(a) or exists(b) and exists(c)", Disjunction((A, Conjunction((B, C))))),
        ("(exists(a) or exists(b)) and exists(c)", Conjunction((Disjunction((A, B)), C))),
        ("not exists(a) and exists(b)", Conjunction((Negation(A), B))),
        ("exists(a)\n\tand exists(b)and exists(c)", Conjunction((A, B, C))),
    ],
)
def test_an_expression_is_parsed(text: str, expected: Expression) -> None:
    assert parse_expression(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("a =", "found the end at character 4; expected a number, or a text in single quotes"),
        ("a 'b'", "found 'b' at character 3; expected =, !=, <, <=, >, >= or \"in\""),
        ("a not in ('b')", 'found "not" at character 3; expected ='),
        ("a == 5", 'found "=" at character 4; expected a number'),
        ('a = "b"', 'found "b" at character 5; expected a number, or a text in single quotes'),
        ("a = b", 'found "b" at character 5; expected a number, or a text in single quotes'),
        ("a = 5 b", 'found "b" at character 7; expected "and", "or" or the end'),
        ("(a = 5", 'found the end at character 7; expected "and", "or" or ")"'),
        ("a in ()", 'found ")" at character 7; expected a number'),
        ("a in (5", 'found the end at character 8; expected "," or ")"'),
        ("and = 5", 'found "and" at character 1; expected a header\'s name'),
        ("exists a", 'found "a" at character 8; expected "("'),
        ("prefix(a, 5)", 'found "5" at character 11; expected a text in single quotes'),
        ("prefix(timestamp, 'x')", "found timestamp at character 8; expected a header or the key"),
        ("timestamp = 'x'", "found 'x' at character 13; expected a number of ms since 1970"),
        ("a = 'b", "found a ' without its end at character 5; expected a closing '"),
        ("a = 5 ; b", 'found ";" at character 7'),
        ("a = \x01", 'found "\\x01" at character 5'),
        ("a = 1e999", 'found "1e999" at character 5; expected a number of at most'),
        ("a = " + "1" * 41, "expected a number of at most 40 characters"),
        ("a = '\udcff'", "found a character that is not Unicode at character 6"),
        ("x" * 1000 + " 'b'", "found 'b' at character 1002"),
    ],
)
def test_an_error_names_position_found_and_expected(text: str, message: str) -> None:
    with pytest.raises(FilterError) as raised:
        parse_expression(text)
    assert message in str(raised.value)
    assert len(str(raised.value)) < 300


def test_length_depth_and_size_are_bounded() -> None:
    for text in (
        "a = 1 " + " " * MAX_FILTER_CHARS,
        "(" * (MAX_DEPTH + 1) + "a = 1" + ")" * (MAX_DEPTH + 1),
        "not " * (MAX_DEPTH + 1) + "a = 1",
        " or ".join(["a = 1"] * (MAX_PREDICATES + 1)),
        f"a in ({','.join(['1'] * (MAX_LITERALS + 1))})",
    ):
        with pytest.raises(FilterError, match="at most"):
            parse_expression(text)
    parse_expression("not (" * (MAX_DEPTH // 2) + "a = 1" + ")" * (MAX_DEPTH // 2))
    parse_expression(" or ".join(["(a = 1)"] * MAX_PREDICATES))
    parse_expression(f"a in ({','.join(['1'] * MAX_LITERALS)})")


@given(EXPRESSIONS)
def test_the_text_of_an_expression_is_parsed_to_itself(expression: Expression) -> None:
    text = str(expression)
    assume(len(text) <= MAX_FILTER_CHARS)
    parsed = parse_expression(text)
    assert parsed == expression
    assert str(parsed) == text


WORDS = ["and", "or", "not", "in", "exists", "prefix", "key", "timestamp", "a", "(", ")", ",", "=", "<", "'", "'x'"]
PIECES = st.sampled_from([*WORDS, '"', "5", "-", "1e5", ";", "\\", "\0", "\udcff", "é"])


@given(st.lists(PIECES, max_size=600).map(" ".join) | st.text(max_size=300) | st.text("('\")", max_size=2100))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(FilterError):
        parse_expression(text)
