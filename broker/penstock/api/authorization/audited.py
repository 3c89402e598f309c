"""What the audit log has of an administrative request: the names in it and the errors in its response."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.api.authorization.rules import ApiRules, AuthorizationState, ElementRule
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import Message

ANY = "(any)"
"""Stands for the names that a filter without a name matches."""
MAX_INSPECTED_RESULTS = 1_000
"""Results of a response whose errors are logged."""


def audited_names(rules: ApiRules, request: Any, version: int, facts: AuthorizationState) -> list[str]:
    """Return the names of the resources that a request concerns."""
    if rules.logged is not None:
        elements, name = rules.logged
        values = (getattr(element, name) for element in getattr(request, elements) or ())
        return [ANY if value is None else str(value) for value in values]
    names = [request.group_id] if hasattr(request, "group_id") else []
    for rule in rules.rules:
        if isinstance(rule, ElementRule) and rule.applies(request, version):
            found = [rule.subject.find(element, request, facts) for element in getattr(request, rule.requested) or ()]
            names += [required[1] for required in found if required is not None]
    return names


def error_names(response: Message) -> list[str]:
    """Return the names of the errors in a response, each once."""
    codes: dict[int, None] = {}
    for number, code in enumerate(error_codes(response)):
        if number == MAX_INSPECTED_RESULTS:
            break
        if code:
            codes[code] = None
    return [ErrorCode(code).name for code in codes]


def error_codes(message: Message) -> Iterator[int]:
    """Yield the error codes of a message and of its elements."""
    for field in message.FIELDS:
        if field.name.endswith("error_code"):
            yield getattr(message, field.name)
        elif field.array and isinstance(field.type, type):
            for element in getattr(message, field.name) or ():
                yield from error_codes(element)
