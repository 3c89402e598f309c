"""Manifests that are refused at `kubectl apply`, with words that name the cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_kubernetes.kubectl import Refused, run

INVALID = sorted((Path(__file__).parent / "invalid").glob("*.yaml"))
WORDS = "# refused with: "


def test_there_are_a_dozen_of_them() -> None:
    assert len(INVALID) >= 12


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_what_is_known_to_be_wrong_is_refused_at_apply(path: Path, crds: None) -> None:
    words = path.read_text().splitlines()[0].removeprefix(WORDS)
    with pytest.raises(Refused) as refused:
        run("kubectl", "--namespace", "default", "apply", "--dry-run=server", "-f", str(path))
    assert words in str(refused.value)
