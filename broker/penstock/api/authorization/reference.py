"""The table as text, for `docs/reference/authorization.md`. Used by `tools/generate_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.api.authorization.rules import (
    DetailRule,
    ElementRule,
    NestedRule,
    OperationsRule,
    RequestRule,
    Requirement,
    Right,
    VisibilityRule,
)
from penstock.api.authorization.table import TABLE
from penstock.wire.apis import api_name


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield (API, right, what it applies to); the rows of an API follow each other."""
    for key, rules in TABLE.items():
        described = [(right, applies) for rule in rules.rules for right, applies in rows_of(rule)]
        if rules.note:
            described.append(("", rules.note))
        for right, applies in described:
            yield api_name(key), right, applies


def rows_of(rule: Requirement) -> Iterator[tuple[str, str]]:
    """Yield (right, what it applies to) of a requirement."""
    condition = f" ({rule.condition})" if rule.condition else ""
    if isinstance(rule, RequestRule):
        yield " or ".join(map(shown, rule.rights)), f"the request{condition}"
    elif isinstance(rule, ElementRule | NestedRule):
        instead = f" or {shown(rule.instead)}" if isinstance(rule, ElementRule) and rule.instead is not None else ""
        for right in rule.subject.rights:
            what = f"each {right.resource.name.lower().replace('_', ' ')} of the request"
            yield shown(right) + instead, what + condition
    elif isinstance(rule, VisibilityRule):
        instead = f" or {shown(rule.instead)}" if rule.instead is not None else ""
        what = rule.right.resource.name.lower().replace("_", " ")
        yield (
            shown(rule.right) + instead,
            f"each {what} of the response; without the right it is left out{condition}",
        )
    elif isinstance(rule, DetailRule):
        yield shown(rule.right), rule.text + condition
    elif isinstance(rule, OperationsRule):
        yield "", f"`{rule.bits}` has the allowed operations{condition}"


def shown(right: Right) -> str:
    """Return a right in the form of a table cell."""
    return f"`{right.operation.name}` on {'any ' if right.is_for_any else ''}`{right.resource.name}`"
