"""`tools/check_tests.py`: modules that must have tests, and outdated entries of its table."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[1] / "check_tests.py"))
LOGIC = "x = 1\n" * (TOOL["MIN_CODE_LINES"] + 1)
SECTION = {"reason": "Tests use both."}
Findings = Callable[[str, str, dict[str, str]], list[str]]


@pytest.fixture
def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Findings:
    """Return a function that checks `penstock/log/flusher.py`, given the module's text, the test's name and a table."""

    def check(text: str, test: str, rows: dict[str, str]) -> list[str]:
        monkeypatch.setitem(TOOL["check_part"].__globals__, "ROOT", tmp_path)
        for path, content in (("penstock/log/flusher.py", text), (f"tests/log/{test}.py", "")):
            (tmp_path / "broker" / path).parent.mkdir(parents=True)
            (tmp_path / "broker" / path).write_text(content)
        found: list[str] = TOOL["check_part"]("broker", {"log": rows})
        return found

    return check


@pytest.mark.parametrize(
    ("text", "test", "rows"),
    [
        (LOGIC, "test_flusher", SECTION),
        (LOGIC, "test_flusher_failures", SECTION),
        (LOGIC, "test_flush", {**SECTION, "flush": "flusher"}),
        (LOGIC, "test_flush", {**SECTION, "../log/flush": "flusher"}),
        ('"""' + LOGIC + '"""\n' + "# x\n" * 50, "test_flush", SECTION),
    ],
    ids=["by name", "by prefix", "by entry", "in another package", "prose only"],
)
def test_a_module_is_specified(findings: Findings, text: str, test: str, rows: dict[str, str]) -> None:
    assert findings(text, test, rows) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (SECTION, "broker/penstock/log/flusher.py has no test file of its name"),
        ({"flush": "flusher"}, "has no reason"),
        ({**SECTION, "flush gone": "flusher"}, "names tests that do not exist: gone"),
        ({**SECTION, "flush": "flusher gone"}, "names a module that does not exist: log/gone.py"),
    ],
)
def test_what_is_missing_is_named(findings: Findings, rows: dict[str, str], words: str) -> None:
    (finding,) = findings(LOGIC, "test_flush", rows)
    assert words in finding
