"""The chart's table of values comes from the comments in values.yaml, and its CRDs are those of crds/."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import chart_files
from tools.chart_files import BadValues, described, table

VALUES = """\
# A comment of no value.
a:
  # -- How many.
  b: 1
  c:
    # -- Either | or.
    d: {e: 2}
# -- All of it.
f:
  g: 3
  h:
    i: 4
# -- The last.
j: null
"""


def test_each_described_value_is_a_row_with_its_default() -> None:
    assert table(VALUES).splitlines()[2:] == [
        "| `a.b` | `1` | How many. |",
        '| `a.c.d` | `{"e":2}` | Either \\| or. |',
        '| `f` | `{"g":3,"h":{"i":4}}` | All of it. |',
        "| `j` | `null` | The last. |",
    ]


def test_a_value_without_a_description_is_refused() -> None:
    with pytest.raises(BadValues, match=r"values.yaml:2: a.b has no"):
        list(described("a:\n  b: 1\n"))


def test_a_chart_that_is_out_of_step_is_named_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "charts" / "penstock"
    (chart / "crds").mkdir(parents=True)
    (tmp_path / "crds").mkdir()
    (tmp_path / "crds" / "new.yaml").write_text("kind: New\n")
    (chart / "crds" / "old.yaml").write_text("kind: Old\n")
    (chart / "values.yaml").write_text(VALUES)
    (chart / "README.md").write_text("before\n<!-- values: begin -->\n<!-- values: end -->\nafter\n")
    monkeypatch.setattr(chart_files, "ROOT", tmp_path)
    monkeypatch.setattr(chart_files, "CHART", chart)
    monkeypatch.setattr(chart_files, "OTHERS", ())
    monkeypatch.setattr("sys.argv", ["chart_files.py", "--check"])
    assert chart_files.main() == 1
    told = capsys.readouterr().err
    assert all(name in told for name in ("README.md", "crds/new.yaml", "crds/old.yaml"))
    monkeypatch.setattr("sys.argv", ["chart_files.py"])
    assert chart_files.main() == 0
    assert [path.name for path in (chart / "crds").iterdir()] == ["new.yaml"]
    assert "| `a.b` | `1` | How many. |" in (chart / "README.md").read_text()
    monkeypatch.setattr("sys.argv", ["chart_files.py", "--check"])
    assert chart_files.main() == 0
