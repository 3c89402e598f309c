"""Parses filters: recursive descent with bounded depth and size. Used by `record_filter`.

disjunction = conjunction { "or" conjunction }
conjunction = negation { "and" negation }
negation    = "not" negation | "(" disjunction ")" | predicate
predicate   = "exists" "(" field ")" | "prefix" "(" field "," text ")"
            | field operator literal | field "in" "(" literal { "," literal } ")"
field       = "key" | "timestamp" | word | quoted name
"""

from __future__ import annotations

from typing import NoReturn

from penstock.filter.expression import (
    KEYWORDS,
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
from penstock.filter.lexer import FilterError, Token, TokenKind, fail, tokens_of
from penstock.filter.numbers import MAX_NUMBER_CHARS, number_of

MAX_DEPTH = 32
"""Nested parentheses and negations."""
MAX_PREDICATES = 64
MAX_LITERALS = 256
"""Numbers and texts in a filter."""
OPERATORS = {operator.value: operator for operator in ComparisonOperator}


def parse_expression(text: str) -> Expression:
    """Return the expression of a filter. Raises FilterError."""
    return FilterParser(text).parse()


class FilterParser:
    """The state of parsing one filter."""

    def __init__(self, text: str) -> None:
        self._tokens = list(tokens_of(text))
        self._index = 0
        self._depth = self._predicates = self._literals = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._index]

    def parse(self) -> Expression:
        """Return the expression. Raises FilterError."""
        if self._is_at_end():
            raise FilterError("invalid filter: it is empty; write a condition such as type = 'order'")
        found = self._disjunction()
        if not self._is_at_end():
            self._fail('"and", "or" or the end')
        return found

    def _is_at_end(self) -> bool:
        return self._token.kind is TokenKind.END

    def _fail(self, expected: str) -> NoReturn:
        fail(self._token.position, self._token, expected)

    def _advance(self) -> Token:
        token = self._token
        self._index += 1
        return token

    def _accept_word(self, keyword: str) -> bool:
        found = self._token.is_word(keyword)
        self._index += found
        return found

    def _expect(self, symbol: str, expected: str = "") -> None:
        if not self._token.is_symbol(symbol):
            self._fail(expected or f'"{symbol}"')
        self._index += 1

    def _disjunction(self) -> Expression:
        operands = [self._conjunction()]
        while self._accept_word("or"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else Disjunction(tuple(operands))

    def _conjunction(self) -> Expression:
        operands = [self._negation()]
        while self._accept_word("and"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else Conjunction(tuple(operands))

    def _negation(self) -> Expression:
        token = self._token
        is_negation, is_group = token.is_word("not"), token.is_symbol("(")
        if not is_negation and not is_group:
            return self._predicate()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail(token.position, token, f"at most {MAX_DEPTH} nested parentheses and negations")
        self._advance()
        if is_negation:
            found: Expression = Negation(self._negation())
        else:
            found = self._disjunction()
            self._expect(")", '"and", "or" or ")"')
        self._depth -= 1
        return found

    def _predicate(self) -> Expression:
        self._predicates += 1
        if self._predicates > MAX_PREDICATES:
            self._fail(f"at most {MAX_PREDICATES} conditions")
        if self._accept_word("exists"):
            self._expect("(")
            field = self._field()
            self._expect(")")
            return Existence(field)
        if self._accept_word("prefix"):
            return self._prefix()
        field = self._field()
        if self._accept_word("in"):
            return self._membership(field)
        operator = OPERATORS.get(self._token.text) if self._token.kind is TokenKind.SYMBOL else None
        if operator is None:
            self._fail('=, !=, <, <=, >, >= or "in"')
        self._advance()
        return Comparison(field, operator, self._literal(field))

    def _prefix(self) -> Prefix:
        self._expect("(")
        position, field = self._token.position, self._field()
        if field.kind is FieldKind.TIMESTAMP:
            fail(position, field, "a header or the key: the timestamp is a number")
        self._expect(",")
        if self._token.kind is not TokenKind.STRING:
            self._fail("a text in single quotes")
        text = self._advance().text
        self._expect(")")
        return Prefix(field, text)

    def _membership(self, field: RecordField) -> Membership:
        self._expect("(")
        literals = [self._literal(field)]
        while self._token.is_symbol(","):
            self._advance()
            literals.append(self._literal(field))
        self._expect(")", '"," or ")"')
        return Membership(field, tuple(literals))

    def _field(self) -> RecordField:
        token = self._token
        if token.kind is TokenKind.QUOTED:
            self._advance()
            return RecordField(FieldKind.HEADER, token.text)
        word = token.text.lower()
        if token.kind is not TokenKind.WORD or word in KEYWORDS - {"key", "timestamp"}:
            self._fail('a header\'s name, "key", "timestamp", "exists", "prefix", "not" or "("')
        self._advance()
        return RecordField(FieldKind(word)) if word in KEYWORDS else RecordField(FieldKind.HEADER, token.text)

    def _literal(self, field: RecordField) -> Literal:
        token = self._token
        self._literals += 1
        if self._literals > MAX_LITERALS:
            self._fail(f"at most {MAX_LITERALS} numbers and texts")
        if token.kind is TokenKind.NUMBER:
            self._advance()
            number = number_of(token.text.encode())
            if number is None:
                fail(token.position, token, f"a number of at most {MAX_NUMBER_CHARS} characters and below 1.8e308")
            return number
        if token.kind is not TokenKind.STRING or field.kind is FieldKind.TIMESTAMP:
            is_time = field.kind is FieldKind.TIMESTAMP
            self._fail("a number of ms since 1970" if is_time else "a number, or a text in single quotes")
        self._advance()
        return token.text
