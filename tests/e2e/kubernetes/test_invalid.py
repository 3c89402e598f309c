"""Manifests that `kubectl apply` rejects with a message that names the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_kubernetes.kubectl import CommandFailed, run

INVALID = sorted((Path(__file__).parent / "invalid").glob("*.yaml"))
PREFIX = "# refused with: "


def test_there_are_a_dozen_manifests() -> None:
    assert len(INVALID) >= 12


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_an_invalid_manifest_is_rejected_at_apply(path: Path) -> None:
    message = path.read_text().splitlines()[0].removeprefix(PREFIX)
    with pytest.raises(CommandFailed) as refused:
        run("kubectl", "--namespace", "default", "apply", "--dry-run=server", "-f", str(path))
    assert message in str(refused.value)
