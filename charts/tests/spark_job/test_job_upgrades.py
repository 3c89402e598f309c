"""Upgrades of a job that the chart rejects because of the existing claim of the checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_charts import Document, render
from penstock_charts.api_server import api_server, refused_beside

CLAIMS = "/api/v1/namespaces/queue/persistentvolumeclaims"
KINDS = {
    "kind": "APIResourceList",
    "groupVersion": "v1",
    "resources": [
        {"name": "persistentvolumeclaims", "namespaced": True, "kind": "PersistentVolumeClaim", "verbs": ["get"]}
    ],
}
CHART = Path(__file__).resolve().parents[2] / "penstock-spark-job"
A_JOB = ("--values", str(Path(__file__).parent / "variants" / "defaults.yaml"))


def claim(helm: str, first: str) -> Document:
    """Return the claim as stored after an install with these values: the API server sets the default storage class."""
    (found,) = [d for d in render(helm, CHART, *A_JOB, "--set", first) if d["kind"] == "PersistentVolumeClaim"]
    found["spec"].setdefault("storageClassName", "standard")
    return found


def upgrade(helm: str, home: Path, first: str, then: str) -> str:
    with api_server({"/api/v1": KINDS, f"{CLAIMS}/penstock-checkpoint": claim(helm, first)}) as url:
        return refused_beside(url, helm, CHART, home, *A_JOB, "--set", then)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        ("", "checkpoint.storage.accessMode=ReadWriteMany", "penstock-checkpoint is ReadWriteOnce, got"),
        ("", "checkpoint.storage.accessMode=ReadWriteMany", "set checkpoint.existingClaim"),
        ("checkpoint.storage.accessMode=ReadWriteOncePod", "", "is ReadWriteOncePod, got ReadWriteOnce"),
        ("", "checkpoint.storage.className=fast", 'is "standard", got "fast"'),
    ],
)
def test_what_kubernetes_does_not_change_about_a_claim_is_refused_with_the_cure(
    helm: str, tmp_path: Path, first: str, then: str, words: str
) -> None:
    assert words in upgrade(helm, tmp_path, first, then)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("", ""),
        ("", "checkpoint.storage.className=standard"),
        ("", "checkpoint.storage.size=2Gi"),
        ("", "checkpoint.storage.accessMode=ReadWriteMany,checkpoint.existingClaim=shared"),
        ("checkpoint.storage.className=fast", "checkpoint.storage.className=fast"),
    ],
)
def test_an_upgrade_that_changes_none_of_that_goes_on(helm: str, tmp_path: Path, first: str, then: str) -> None:
    assert upgrade(helm, tmp_path, first, then) == ""
