"""Commands that documents print for users to copy: none deletes data, and none lacks a requirement."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("*.md", "*/README.md", "docs/**/*.md", "charts/**/*.md", "charts/**/NOTES.txt", "examples/**/*.yaml")
TEXTS = sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})
GUIDE = ROOT / "docs" / "guide" / "spark-on-kubernetes.md"
SUBMIT = ROOT / "examples" / "kubernetes" / "spark-submit.yaml"
FILE_OPTIONS = ("-f", "--filename")
COMMAND = re.compile(r"kubectl\b[^`\n]*")
CLAIM = re.compile(r"^kind: *PersistentVolumeClaim *$", re.MULTILINE)


def removals(text: str) -> Iterator[tuple[str, list[str]]]:
    """Return commands that delete the contents of files, and those files."""
    for command in COMMAND.findall(re.sub(r"\\\n\s*", "", text)):
        words = [word.strip("(),.;:'\"") for word in command.split()]
        deletes = "delete" in words or ("replace" in words and "--force" in words)
        files = [words[n + 1] if n + 1 < len(words) else "" for n, word in enumerate(words) if word in FILE_OPTIONS]
        files += [word.partition("=")[2] for word in words if word.startswith("--filename=")]
        if deletes and files:
            yield command, files


def dangers(text: str, folder: Path) -> list[str]:
    """Return removals by a file with a volume claim, or by an unreadable one. File names are relative to the
    repository's root or to the folder of the text."""
    found = []
    for command, files in removals(text):
        for name in files:
            paths = [path for path in (ROOT / name, folder / name) if name and path.is_file()]
            if not paths or any(CLAIM.search(path.read_text(encoding="utf-8")) for path in paths):
                found.append(command)
    return found


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_printed_command_deletes_a_volumes_claim_along_with_what_it_is_for(path: Path) -> None:
    assert dangers(path.read_text(encoding="utf-8"), path.parent) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("kubectl -n q replace --force -f claims.yaml", 1),
        ("# again (kubectl replace --force -f), and", 1),
        ("`kubectl replace --force -f` for the Job", 1),
        ("kubectl delete --wait \\\n  --filename=claims.yaml", 1),
        ("kubectl delete -f nowhere.yaml", 1),
        ("kubectl delete -f job.yaml", 0),
        ("kubectl replace -f claims.yaml", 0),
        ("kubectl apply -f claims.yaml\nkubectl delete job submit", 0),
    ],
)
def test_a_command_that_would_is_found(tmp_path: Path, text: str, count: int) -> None:
    (tmp_path / "claims.yaml").write_text("kind: Job\n---\nkind: PersistentVolumeClaim\n")
    (tmp_path / "job.yaml").write_text("kind: Job\n")
    assert len(dangers(text, tmp_path)) == count


def test_submitting_again_deletes_the_job_that_submits_and_applies_the_example() -> None:
    documents = [msgspec.yaml.decode(part) for part in SUBMIT.read_text(encoding="utf-8").split("\n---\n")]
    (job,) = [d["metadata"]["name"] for d in documents if d["kind"] == "Job"]
    again = [f"kubectl -n queue delete job {job}", f"kubectl -n queue apply -f {SUBMIT.relative_to(ROOT)}"]
    assert "\n".join(again) in GUIDE.read_text(encoding="utf-8")
    assert "\n".join(f"#   {command}" for command in again) in SUBMIT.read_text(encoding="utf-8")


def test_submitting_from_outside_replaces_every_setting_that_holds_inside_alone() -> None:
    documents = [msgspec.yaml.decode(part) for part in SUBMIT.read_text(encoding="utf-8").split("\n---\n")]
    (config,) = [d["data"] for d in documents if d["kind"] == "ConfigMap"]
    settings = dict(line.split(" ", 1) for line in config["submit.conf"].splitlines())
    inside = {key for key, value in settings.items() if "/etc/penstock-spark/" in value or ".svc" in value}
    assert len(inside) == 3
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [each for each in blocks if "--conf" in each]
    words = shlex.split(block.replace("\\\n", " "))
    given = dict(words[n + 1].split("=", 1) for n, word in enumerate(words) if word == "--conf")
    assert inside < set(given)
    for key in inside - {"spark.master"}:
        assert given[key] in block.partition("in ")[2].partition("; do")[0].split(), "one of the files that are fetched"
