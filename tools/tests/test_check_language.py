"""`tools/check_language.py`: rejected and accepted texts."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_language", ROOT / "tools" / "check_language.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_language"] = module
    spec.loader.exec_module(module)
    return module


def found(tool: ModuleType, source: str) -> list[tuple[int, str]]:
    rules = tool.load_rules()
    return [
        (line, message)
        for first, text in tool.prose_of_code(source)
        for _, line, message in tool.phrases_in(text, "a.py", rules, first)
    ]


def test_banned_phrases_in_comments_and_strings_are_found_with_their_line(tool: ModuleType) -> None:
    source = 'x = 1\n\n\ndef f():\n    """Ends well.\n\n    Nobody waits.\n    """\n    return "somebody"  # fine\n'
    assert [line for line, _ in found(tool, source)] == [7, 9]


def test_a_phrase_is_found_across_the_lines_of_a_comment(tool: ModuleType) -> None:
    assert found(tool, "x = 1\n# the broker is\n# told so\n")[0][0] == 2


def test_plain_prose_passes(tool: ModuleType) -> None:
    assert not found(tool, '"""The leader waits for the flush."""\n# etcd compacts revisions\n')


def test_banned_names_are_found_unless_the_allowlist_has_their_place(tool: ModuleType) -> None:
    rules = tool.load_rules()
    tree = ast.parse("class Tenure:\n    def take(self): ...\n\ndef _settle(): ...\n\ndef append(): ...\n")
    assert [line for _, line, _ in tool.names_in(tree, "a.py", rules)] == [1, 4, 2]
    rules.allowed["take"] = ["a.py::Tenure"]
    assert [line for _, line, _ in tool.names_in(tree, "a.py", rules)] == [1, 4]


def test_a_class_name_may_occur_once(tool: ModuleType) -> None:
    rules = tool.load_rules()
    trees = {"a.py": ast.parse("class Member: ...\n"), "b.py": ast.parse("class Member: ...\nclass Other: ...\n")}
    assert [(path, line) for path, line, _ in tool.repeated_classes(trees, rules)] == [("b.py", 1)]
    rules.twice.append("Member")
    assert not list(tool.repeated_classes(trees, rules))
