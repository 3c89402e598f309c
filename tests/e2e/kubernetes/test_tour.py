"""The Kubernetes commands of README.md, run as printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock_kubernetes.kubectl import CommandFailed, eventually, run
from penstock_kubernetes.release import images

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[3]
NAMESPACE = "queue"
SECTION = re.compile(r"^## On Kubernetes$(.*?)^## ", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks() -> list[str]:
    section = SECTION.search((ROOT / "README.md").read_text())
    assert section is not None, "README.md has the section"
    return BLOCK.findall(section[1])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Working directory of the commands, with the checkout's charts, values of the images, and a kubeconfig."""
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    (tmp_path / "values.yaml").write_text(as_yaml(images()))
    shutil.copy(os.environ["KUBECONFIG"], tmp_path / "kubeconfig")
    yield tmp_path
    if not os.environ.get("E2E_KEEP"):
        run("kubectl", "delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
        gone = lambda: not run("kubectl", "get", "namespace", NAMESPACE, "--ignore-not-found").strip()  # noqa: E731
        eventually(f"namespace {NAMESPACE} is gone", gone, 180)


def test_each_command_does_what_the_readme_says(folder: Path) -> None:
    printed = [typed(block, folder) for block in blocks()]
    assert len(printed) == 3, "the section has three blocks"
    installed, wrote, scaled = printed
    assert "condition met" in installed
    assert "topic.penstock.io/orders condition met" in wrote
    assert re.search(r"billing\s+penstock\s+\w+\s+\d+\s+400", scaled), f"the group's lag is 400:\n{scaled}"
    assert re.search(r"cluster.penstock.io/penstock\s+5", scaled), f"five brokers:\n{scaled}"


def typed(block: str, folder: Path) -> str:
    """Run a block of commands; return what a terminal shows."""
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=folder,
        env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=800,
        check=False,
    )
    print(f"{block}\n{done.stdout}")
    if done.returncode:
        raise CommandFailed(f"{block}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def as_yaml(values: list[str]) -> str:
    """Return arguments of `--set` as a values file (JSON is YAML)."""
    tree: dict[str, object] = {}
    for value in values:
        path, _, text = value.partition("=")
        *above, last = path.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})  # type: ignore[assignment]
        place[last] = text
    return json.dumps(tree, indent=2)
