"""Check that each module with logic has a test file with its name, or an entry in `tools/tests.toml`.

A test file `test_NAME.py` or `test_NAME_*.py` below the tests of a package specifies the package's module `NAME.py`.
"""

from __future__ import annotations

import ast
import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("tests.toml")
SOURCES = {"broker": "penstock", "operator": "penstock_operator", "spark_jobs": "penstock_spark"}
GENERATED = "wire/messages/"
MIN_CODE_LINES = 40
"""Minimum lines of code from which a module needs its own test file."""


def main() -> int:
    table = tomllib.loads(TABLE.read_text())
    findings = [finding for part in SOURCES for finding in check_part(part, table[part])]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def check_part(part: str, table: dict[str, dict[str, str]]) -> list[str]:
    """Return the findings in one distribution. `table` has a section per package: a reason, and modules by tests."""
    source, tests = ROOT / part / SOURCES[part], ROOT / part / "tests"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py") if path.name != "__init__.py"}
    findings: list[str] = []
    specified: set[str] = set()
    for package, rows in table.items():
        where = f"{TABLE.name}: [{part}.{package}]"
        if not rows.get("reason"):
            findings.append(f"{where} has no reason")
        for names, specifies in rows.items():
            if names == "reason":
                continue
            named = {name: Path(os.path.normpath(tests / package / name)) for name in names.split()}
            missing = [name for name, path in named.items() if not path.with_name(f"test_{path.name}.py").is_file()]
            listed = {str(Path(package, f"{module}.py")) for module in specifies.split()}
            findings += [f"{where} names tests that do not exist: {name}" for name in missing]
            findings += [f"{where} names a module that does not exist: {module}" for module in sorted(listed - modules)]
            specified |= listed
    for module in sorted(modules - specified):
        if (
            module.startswith(GENERATED)
            or has_own_tests(tests, module)
            or code_lines(source / module) <= MIN_CODE_LINES
        ):
            continue
        name = f"{part}/{SOURCES[part]}/{module}"
        findings.append(f"{name} has no test file of its name; add one, or an entry in {TABLE.name}")
    return findings


def has_own_tests(tests: Path, module: str) -> bool:
    package = module.partition("/")[0] if "/" in module else "."
    stem, folder = Path(module).stem, tests / package
    return any(p.stem == f"test_{stem}" or p.stem.startswith(f"test_{stem}_") for p in folder.rglob("test_*.py"))


def code_lines(path: Path) -> int:
    """Return the number of lines without comments, docstrings and blank lines."""
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if number not in prose and line.strip() and line.strip()[0] != "#")


if __name__ == "__main__":
    sys.exit(main())
