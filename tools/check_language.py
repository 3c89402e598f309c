"""Check the words of code and documentation: `python tools/check_language.py [PATH ...]`.

The check fails for a phrase or an identifier that `language.toml` beside it bans, and for a class name that occurs
twice in the product. `make lint` runs it over the whole checkout; with paths, only over those.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "tools" / "language.toml"
PROSE_SUFFIXES = (".md", ".yaml", ".yml", ".tpl", ".toml", ".sh")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

Finding = tuple[str, int, str]
"""Path, line from 1, message."""


@dataclass(frozen=True)
class Rules:
    """The contents of `language.toml`."""

    phrases: dict[str, str]
    """Replacement by banned phrase, a regular expression."""
    classes: list[str]
    functions: dict[str, str]
    """Replacement by banned function name."""
    allowed: dict[str, list[str]]
    """Exceptions by banned name: `path` or `path::Class`."""
    twice: list[str]
    """Class names that may occur twice."""
    skipped: list[str]
    """Paths, or prefixes of paths, that are not checked."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return one expression for all phrases; a phrase matches across a line break."""
        parts = [rf"\b(?:{phrase})\b".replace(" ", r"[\s#]+") for phrase in self.phrases]
        return re.compile("|".join(parts), re.IGNORECASE)

    def advice(self, found: str) -> str:
        """Return the replacement of `found`."""
        words = " ".join(found.replace("#", " ").split())
        for phrase, advice in self.phrases.items():
            if re.fullmatch(phrase, words, re.IGNORECASE):
                return advice
        return ""


def load_rules() -> Rules:
    """Read `language.toml`."""
    found = tomllib.loads(RULES.read_text())
    names = found["names"]
    return Rules(
        found["phrases"], names["classes"], names["functions"], names["allowed"], names["twice"], found["skipped"]
    )


def files(paths: list[str]) -> list[Path]:
    """Return the files below `paths` (default: all) that git tracks, or would after `git add`."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *paths]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in sorted(set(listed.stdout.splitlines())) if (ROOT / line).is_file()]


def phrases_in(text: str, name: str, rules: Rules, first_line: int = 1) -> Iterator[Finding]:
    """Yield banned phrases of a text whose first line is `first_line` of the file."""
    for match in rules.pattern.finditer(text):
        line = first_line + text.count("\n", 0, match.start())
        words = " ".join(match.group().replace("#", " ").split())
        yield name, line, f'"{words}": {rules.advice(words)}'


def prose_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments and strings with their first lines; consecutive comments form one text."""
    comments: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comments and token.start[0] != last + 1:
                yield first, "\n".join(comments)
                comments = []
            if not comments:
                first = token.start[0]
            comments.append(token.string)
            last = token.start[0]
        elif token.type == tokenize.STRING and not token.string.lower().startswith(("b", "rb")):
            yield token.start[0], token.string
    if comments:
        yield first, "\n".join(comments)


def names_in(tree: ast.Module, name: str, rules: Rules) -> Iterator[Finding]:
    """Yield banned names of classes and functions that the module defines."""
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            where = f"{name}::{node.name}" if isinstance(node, ast.ClassDef) else name
            if isinstance(child, ast.ClassDef) and child.name in rules.classes:
                yield name, child.lineno, f"class {child.name}: use the field's term"
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                bare = child.name.lstrip("_")
                if bare in rules.functions and where not in rules.allowed.get(bare, []):
                    yield name, child.lineno, f"function {child.name}: {rules.functions[bare]}"


def repeated_classes(trees: dict[str, ast.Module], rules: Rules) -> Iterator[Finding]:
    """Yield class names that the product defines in more than one place."""
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in rules.twice:
                places[node.name].append((name, node.lineno))
    for class_name, found in places.items():
        for path, line in found[1:]:
            yield path, line, f"class {class_name} is also in {found[0][0]}: qualify one by its package"


def is_product(name: str) -> bool:
    """Return whether the file ships to users."""
    packages = ("broker/penstock/", "operator/penstock_operator/", "spark_jobs/penstock_spark/")
    return name.startswith(packages) and "/wire/messages/" not in name


def check(paths: list[str], rules: Rules) -> list[Finding]:
    """Return all findings below `paths`."""
    found: list[Finding] = []
    trees: dict[str, ast.Module] = {}
    for path in files(paths):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(tuple(rules.skipped)):
            continue
        if path.suffix == ".py":
            source = path.read_text()
            for line, text in prose_of_code(source):
                found += phrases_in(text, name, rules, line)
            if is_product(name):
                trees[name] = ast.parse(source)
                found += names_in(trees[name], name, rules)
        elif path.suffix in PROSE_SUFFIXES or path.name == "Makefile":
            text = path.read_text()
            outside = FENCED.sub(lambda match: "\n" * match.group().count("\n"), text)
            found += phrases_in(outside if path.suffix == ".md" else text, name, rules)
    found += repeated_classes(trees, rules)
    return sorted(found)


def main() -> int:
    """Print findings as `path:line: message`; exit code 1 if there are any."""
    findings = check(sys.argv[1:], load_rules())
    for path, line, message in findings:
        print(f"{path}:{line}: {message}")
    if findings:
        print(f"{len(findings)} findings; tools/language.toml says what to write instead", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
