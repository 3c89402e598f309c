"""The nodes of a parsed filter. Their text can be parsed again."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

Literal = str | int | float

KEYWORDS = frozenset({"and", "or", "not", "in", "exists", "prefix", "key", "timestamp"})
"""Words that stand for a header only in double quotes."""


class FieldKind(Enum):
    """The parts of a record that a filter can read."""

    HEADER = "header"
    KEY = "key"
    TIMESTAMP = "timestamp"


class RecordField(NamedTuple):
    """A part of a record: a header by its name, the key, or the timestamp in ms."""

    kind: FieldKind
    name: str = ""

    def __str__(self) -> str:
        if self.kind is not FieldKind.HEADER:
            return str(self.kind.value)
        return '"' + self.name.replace('"', '""') + '"'


class ComparisonOperator(Enum):
    """The comparisons."""

    EQUAL = "="
    NOT_EQUAL = "!="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="


class Comparison(NamedTuple):
    """Compares a field with a number or a text."""

    field: RecordField
    operator: ComparisonOperator
    literal: Literal

    def __str__(self) -> str:
        return f"{self.field} {self.operator.value} {literal_text(self.literal)}"


class Membership(NamedTuple):
    """Whether a field is one of several numbers and texts."""

    member: RecordField
    literals: tuple[Literal, ...]

    def __str__(self) -> str:
        return f"{self.member} in ({', '.join(map(literal_text, self.literals))})"


class Existence(NamedTuple):
    """Whether the record has a field."""

    present: RecordField

    def __str__(self) -> str:
        return f"exists({self.present})"


class Prefix(NamedTuple):
    """Whether a field starts with a text."""

    text: RecordField
    prefix: str

    def __str__(self) -> str:
        return f"prefix({self.text}, {literal_text(self.prefix)})"


class Negation(NamedTuple):
    """True if the operand is false."""

    operand: Expression

    def __str__(self) -> str:
        return f"not {nested(self.operand)}"


class Conjunction(NamedTuple):
    """True if all operands are."""

    all_of: tuple[Expression, ...]

    def __str__(self) -> str:
        return " and ".join(map(nested, self.all_of))


class Disjunction(NamedTuple):
    """True if any operand is."""

    any_of: tuple[Expression, ...]

    def __str__(self) -> str:
        return " or ".join(map(nested, self.any_of))


Expression = Comparison | Membership | Existence | Prefix | Negation | Conjunction | Disjunction


def nested(operand: Expression) -> str:
    """Return the text of an operand."""
    return f"({operand})" if isinstance(operand, Conjunction | Disjunction) else str(operand)


def literal_text(literal: Literal) -> str:
    """Return the text of a literal."""
    return "'" + literal.replace("'", "''") + "'" if isinstance(literal, str) else repr(literal)
