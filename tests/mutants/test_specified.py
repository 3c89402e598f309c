"""Which test files specify a module."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from penstock_mutants.specified import specifying_tests

TABLE = """
[broker.log]
reason = "The flusher is tested with its queue."
"flush ../api/flushes" = "flusher parts/queue"
"""


def test_tests_of_its_name_and_those_of_the_table_specify_a_module(tmp_path: Path) -> None:
    files = ["log/test_flusher.py", "log/parts/test_flusher_limits.py", "log/test_flushers.py", "log/test_flush.py"]
    for name in [*files, "api/test_flusher.py", "api/test_flushes.py"]:
        (tmp_path / "broker/tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "broker/tests" / name).touch()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/tests.toml").write_text(TABLE)
    assert specifying_tests(tmp_path, "broker", "log/flusher.py") == [
        "broker/tests/api/test_flushes.py",
        "broker/tests/log/parts/test_flusher_limits.py",
        "broker/tests/log/test_flush.py",
        "broker/tests/log/test_flusher.py",
    ]
    assert specifying_tests(tmp_path, "broker", "log/parts/queue.py") == [
        "broker/tests/api/test_flushes.py",
        "broker/tests/log/test_flush.py",
    ]
    assert specifying_tests(tmp_path, "broker", "group/offsets.py") == []


def test_modules_of_this_project_have_their_tests() -> None:
    root = Path(__file__).parents[2]
    assert "broker/tests/api/test_share_leaders.py" in specifying_tests(root, "broker", "share/leaders.py")
    assert specifying_tests(root, "operator", "reconcile/cluster/hibernation.py") == [
        "operator/tests/reconcile/test_hibernation.py"
    ]
