"""Update the charts' generated files: the table of values in each README.md, and the copy of crds/ in charts/penstock.

python tools/chart_files.py           write them
python tools/chart_files.py --check   exit 1 if the files differ

The table comes from values.yaml: the line `# -- text` above a value is its description.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "penstock"
OTHERS = (ROOT / "charts" / "penstock-spark-job",)
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
DESCRIPTION = re.compile(r"^(?P<indent> *)# -- (?P<text>.+)$")
KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):")


class BadValues(Exception):
    """A value without a description, or in an unexpected place."""


def described(text: str) -> Iterator[tuple[str, str]]:
    """Yield path (with dots) and description of each described value."""
    path: list[str] = []
    pending: str | None = None
    is_inside = 0  # deeper lines are part of the value described last
    for number, line in enumerate(text.splitlines(), 1):
        if match := DESCRIPTION.match(line):
            pending = match["text"]
        elif match := KEY.match(line):
            depth = len(match["indent"]) // 2
            if is_inside and depth >= is_inside:
                continue
            is_inside = 0
            path = [*path[:depth], match["key"]]
            if pending:
                yield ".".join(path), pending
                pending, is_inside = None, depth + 1
            elif line.rstrip() != f"{match['indent']}{match['key']}:":
                raise BadValues(f"values.yaml:{number}: {'.'.join(path)} has no `# -- description` above it")


def table(text: str) -> str:
    """Return the Markdown table of values."""
    values = msgspec.yaml.decode(text)
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, meaning in described(text):
        default: Any = values
        for key in path.split("."):
            default = default[key]
        shown = msgspec.json.encode(default).decode().replace("|", "\\|")
        lines.append(f"| `{path}` | `{shown}` | {meaning.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def generate() -> dict[Path, str]:
    """Return the expected text of each file."""
    files = {CHART / "crds" / path.name: path.read_text(encoding="utf-8") for path in (ROOT / "crds").glob("*.yaml")}
    for chart in (CHART, *OTHERS):
        files[chart / "README.md"] = readme(chart)
    return files


def readme(chart: Path) -> str:
    """Return the README of a chart, with the table of its values between the two marker lines."""
    before, begin, rest = (chart / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadValues(f"{chart.name}/README.md lacks the lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + table((chart / "values.yaml").read_text(encoding="utf-8")) + END + after


def main() -> int:
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file differs")
    check = parser.parse_args().check
    files = generate()
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    surplus = [path for path in (CHART / "crds").glob("*") if path not in files]
    if not check:
        for path in stale:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
        for path in surplus:
            path.unlink()
    elif stale or surplus:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale + surplus)
        print(f"out of step: {names}. Run: python tools/chart_files.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
