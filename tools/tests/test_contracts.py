"""The import contracts in pyproject.toml reject forbidden imports.

Each case adds one import to a copy of the package and runs the linter on it. `make lint` checks that the real tree
keeps all contracts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"

PLANTS = {
    "layers": {"log/planted.py": "import penstock.api"},
    "acyclic": {
        "group/planted_a.py": "import penstock.group.planted_b",
        "group/planted_b.py": "import penstock.group.planted_a",
    },
    "wire-is-pure": {"wire/planted.py": "import os.path"},
    "placement-is-pure": {"placement/__init__.py": "", "placement/planted.py": "from time import time"},
    "state-without-wire": {"state/planted.py": "import penstock.wire"},
    "client-stays-outside": {"client/planted.py": "import penstock.log"},
    "cli-stays-outside": {"cli/planted.py": "import penstock.group"},
    "log-without-network": {"log/planted.py": "import ssl"},
}


def lint(tree: Path, contract: str) -> subprocess.CompletedProcess[str]:
    """Run one contract over the package in `tree`."""
    return subprocess.run(
        [str(LINT_IMPORTS), "--no-cache", "--contract", contract],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the package beside the contracts."""
    shutil.copytree(ROOT / "broker" / "penstock", tmp_path / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("contract", PLANTS)
def test_a_forbidden_import_breaks_its_contract(tree: Path, contract: str) -> None:
    for name, text in PLANTS[contract].items():
        path = tree / "penstock" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    result = lint(tree, contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "planted" in result.stdout


def test_a_room_that_no_layer_names_is_refused(tree: Path) -> None:
    (tree / "penstock" / "planted").mkdir()
    (tree / "penstock" / "planted" / "__init__.py").touch()
    result = lint(tree, "layers")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "penstock.planted" in result.stdout
