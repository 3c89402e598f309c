"""`penstock-spark` without Spark: checking, explaining, listing, examples, Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from penstock_spark.cli.root import app
from penstock_spark.jobs.run import java
from penstock_spark.jobs.spec.kinds import KINDS


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def test_every_kind_is_listed_with_a_line() -> None:
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_what_init_prints_is_a_valid_job(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(run("init", kind).stdout)
    result = run("validate", str(path))
    assert (result.exit_code, result.stdout) == (0, f"{path}: valid\n")


def test_init_of_an_unknown_kind_names_the_near_one() -> None:
    result = run("init", "archiv")
    assert result.exit_code == 2
    assert "did you mean archive?" in result.stderr


def test_problems_are_printed_with_their_lines_and_the_exit_code_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: archive\nname: x\nto: {format: delta}\nsource: {brokers: x}\n")
    result = run("validate", str(path))
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert f"{path}:1:1: checkpoint: missing" in lines
    assert f"{path}:3:5: to.path: missing" in lines
    assert lines[-1] == f"error: {path}: 3 problems"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = run("explain", str(tmp_path / "none.yaml"))
    assert (result.exit_code, result.stderr.strip()) == (2, f"error: {tmp_path}/none.yaml: No such file or directory")


def test_without_file_and_arguments_the_cure_is_named() -> None:
    result = run("run")
    assert result.exit_code == 2
    assert "penstock-spark init KIND" in result.stderr


def test_explain_says_the_plan_in_aligned_lines(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(run("init", "mirror").stdout)
    result = run("explain", str(path), "--set", "name=other")
    assert result.exit_code == 0
    assert result.stdout.startswith("job         other\nkind        mirror\n")


@pytest.mark.integration
def test_a_run_without_java_ends_with_the_line_that_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(run("init", "archive").stdout)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("run", str(path))
    assert result.exit_code == 5
    assert "penstock-spark java --install" in result.stderr


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_a_version_is_read_from_what_java_prints(printed: str, expected: int | None) -> None:
    assert java.version_of(printed) == expected


def test_java_home_counts_before_the_path_and_one_that_is_too_old_is_refused(tmp_path: Path) -> None:
    home = {"JAVA_HOME": str(tmp_path)}
    assert java.find(home, lambda _: "/usr/bin/java", lambda _: 21) == java.Java(tmp_path, 21)
    assert java.find({}, lambda _: "/usr/bin/java", lambda _: 17) == java.Java(None, 17)
    with pytest.raises(java.JavaMissing, match="which is Java 11; Spark needs 17"):
        java.find(home, lambda _: None, lambda _: 11)


def test_the_java_of_the_cache_is_found_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(java.JavaMissing, match="Java not found"):
        java.find({}, lambda _: None, lambda _: 21)
    binary = tmp_path / "penstock/java/jdk-21/bin/java"
    binary.parent.mkdir(parents=True)
    binary.touch()
    assert java.find({}, lambda _: None, lambda _: 21) == java.Java(binary.parent.parent, 21)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "plan9"])
def test_every_platform_gets_one_line(platform: str) -> None:
    assert java.cure(platform).count("\n") == 0


SECRET = """\
kind: archive
name: x
source: {brokers: 'localhost:9092', topics: [t], options: {kafka.sasl.jaas.config: '${env:PENSTOCK_TEST_SECRET}'}}
checkpoint: c
to: {format: delta, path: p}
"""


def test_checking_and_explaining_need_no_secrets_and_show_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SECRET)
    monkeypatch.setenv("PENSTOCK_TEST_SECRET", "s3cret")
    assert run("validate", str(path)).exit_code == 0
    explained = run("explain", str(path)).stdout
    assert "secrets    ${env:PENSTOCK_TEST_SECRET}\n" in explained
    assert "s3cret" not in explained


def test_a_run_without_a_secret_ends_before_spark_starts_and_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SECRET)
    monkeypatch.delenv("PENSTOCK_TEST_SECRET", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # the error that would follow without the check
    result = run("run", str(path))
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    place = f"{path}:3:84: source.options.kafka.sasl.jaas.config"
    problem = f'{place}: the environment variable "PENSTOCK_TEST_SECRET" is not set'
    assert lines == [problem, f"error: {path}: 1 problem"]
