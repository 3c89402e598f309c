"""Secrets of tests, and the search for them in what brokers, operators, commands and clients wrote.

A pytest plugin of the whole checkout: kits register secrets with `secret` and pass each log, page and answer to
`search`. A test fails if a secret was found since its start, or is in what the test itself wrote (captured output).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest

MIN_LENGTH = 8
"""Shorter secrets would be found by chance."""
PATTERNS = {
    "a private key": re.compile(r"PRIVATE KEY-----(?:\s|\\n)*[A-Za-z0-9+/=]{16}"),
    "a token": re.compile(r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    "a SCRAM key": re.compile(r"(?:stored_key|server_key|salted_password|auth_bytes)=b?['\"][^'\"]"),
}
"""Secrets that need no registration."""

_forms: dict[str, str] = {}
_leaks: list[str] = []


def secret(value: str) -> str:
    """Register a secret for the rest of the process, and return it."""
    assert len(value) >= MIN_LENGTH, f"{value!r} is too short to be searched for"
    for form in (value, value.encode().hex(), *base64_forms(value.encode())):
        _forms[form] = value
    return value


def base64_forms(value: bytes) -> Iterator[str]:
    """Yield what base64 of a text contains if the text contains the value, for each alignment."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value + b"\0" * (-(before + len(value)) % 3)).decode()
        after = -(before + len(value)) % 3
        yield encoded[(0, 2, 3)[before] : len(encoded) - (0, 2, 3)[after]]


def found(what: str, text: str | bytes) -> list[str]:
    """Return a message for each secret in a text, with its line."""
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    places = {match.start(): name for name, pattern in PATTERNS.items() for match in pattern.finditer(shown)}
    places |= {at: repr(value) for form, value in _forms.items() if (at := shown.find(form)) >= 0}
    return [
        f"{what}, line {shown.count(chr(10), 0, at) + 1}: {name} in {line(shown, at)}" for at, name in places.items()
    ]


def line(text: str, at: int) -> str:
    """Return the line of a position, shortened around it."""
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    return repr(text[max(begin, at - 200) : min(end if end >= 0 else len(text), at + 200)])


def search(what: str, text: str | bytes) -> None:
    """Search a text that a process wrote; the running test fails at its end if there is a secret in it."""
    _leaks.extend(found(what, text))


def assert_no_secret(what: str, text: str | bytes) -> None:
    """Fail at once if there is a secret in a text."""
    assert found(what, text) == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Fail a test at its end if a secret was found."""
    report = yield
    if call.when != "teardown":
        return report
    for title, text in report.sections:
        search(title, text)
    if _leaks and report.passed:
        report.outcome = "failed"
        report.longrepr = "\n".join(["secrets were written:", *_leaks])
    _leaks.clear()
    return report
