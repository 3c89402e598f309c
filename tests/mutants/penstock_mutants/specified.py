"""The test files that specify a module: those of its name, and those that `tools/tests.toml` names for it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

TABLE = "tools/tests.toml"


def specifying_tests(root: Path, part: str, module: str) -> list[str]:
    """Return paths below `root`, which is a checkout, for a module such as `log/flusher.py` of a part such as
    `broker`."""
    package, _, name = module.removesuffix(".py").partition("/")
    folder = root / part / "tests" / package
    own = f"test_{Path(name).name}"
    found = {path for path in folder.rglob("test_*.py") if path.stem == own or path.stem.startswith(f"{own}_")}
    rows = tomllib.loads((root / TABLE).read_text())[part].get(package, {})
    for names, modules in rows.items():
        if names != "reason" and name in modules.split():
            named = (Path(os.path.normpath(folder / test)) for test in names.split())
            found.update(path.with_name(f"test_{path.name}.py") for path in named)
    return sorted(str(path.relative_to(root)) for path in found)
