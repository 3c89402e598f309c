"""Information of a driver's Python process about its JVM, and discovery of the service."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_spark.model.errors import InvalidOption
from penstock_spark.sink.driver import SinkDriver, ancestors, is_alive, settings_of, start_time
from penstock_spark.sink.rendezvous import HOST_VARIABLE, executors_host, own_directory, read
from penstock_spark.sink.service_client import ServiceUnreachable
from penstock_spark.sink.writer import check_speculation

JAVA = ["/usr/bin/java", "-cp", "x", "org.apache.spark.deploy.SparkSubmit"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--master", "k8s://https://k", "--name", "n"], {"spark.master": "k8s://https://k"}),
        (["--conf", "spark.master=local[2]", "--conf", "spark.x=a=b"], {"spark.master": "local[2]", "spark.x": "a=b"}),
        (["-Dspark.driver.port=7", "pyspark-shell"], {"spark.driver.port": "7"}),
        (["--conf"], {}),
    ],
)
def test_settings_are_read_from_the_command_line(
    words: list[str], wanted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert settings_of([*JAVA, *words]) == wanted


def test_the_command_line_wins_over_the_file_of_properties(tmp_path: Path) -> None:
    path = tmp_path / "spark.properties"
    path.write_text("# made by the submission\nspark.master=k8s://x\nspark.speculation true\nspark.driver.host: h\n")
    found = settings_of([*JAVA, "--properties-file", str(path), "--conf", "spark.master=local"])
    assert found == {"spark.master": "local", "spark.speculation": "true", "spark.driver.host": "h"}


def test_speculation_is_refused_with_the_setting_to_change() -> None:
    check_speculation(SinkDriver(1, "", {"spark.speculation": "false"}))
    with pytest.raises(InvalidOption, match=r"set spark\.speculation=false"):
        check_speculation(SinkDriver(1, "", {"spark.speculation": "true"}))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("settings", "variable", "wanted"),
    [
        ({"spark.master": "local[4]", "spark.driver.host": "h"}, None, "127.0.0.1"),
        ({"spark.master": "k8s://x", "spark.driver.host": "driver-svc"}, None, "driver-svc"),
        ({"spark.master": "k8s://x", "spark.driver.host": "[fd00::7]"}, None, "fd00::7"),
        ({"spark.master": "k8s://x", "spark.driver.host": "driver-svc"}, "10.0.0.9", "10.0.0.9"),
        ({}, None, "127.0.0.1"),
    ],
)
def test_executors_are_told_an_address_that_they_reach(
    settings: dict[str, str], variable: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last case no address is configured, and the brokers are reached from loopback."""
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    if variable:
        monkeypatch.setenv(HOST_VARIABLE, variable)
    assert executors_host(SinkDriver(1, "", settings), "127.0.0.1:9092") == wanted


@pytest.mark.integration
def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_time(process.pid)
    try:
        assert next(ancestors(process.pid)) == os.getpid()
        assert is_alive(process.pid, started)
        assert not is_alive(process.pid, "another")
    finally:
        process.kill()
        process.wait()
    assert not is_alive(process.pid, started)


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_rendezvous_file_that_others_can_read_or_write_is_not_trusted(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "1.json"
    path.write_text('{"port": 1, "token": "00"}')
    path.chmod(0o600)
    assert read(path) is not None
    path.chmod(mode)
    assert read(path) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"port": "x", "token": "00"}', '{"port": 1, "token": 5}'])
def test_a_rendezvous_file_that_holds_something_else_is_as_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "1.json"
    path.write_text(content)
    path.chmod(0o600)
    assert read(path) is None


def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert stat.S_IMODE(own_directory().stat().st_mode) == 0o700
    own_directory().chmod(0o755)
    with pytest.raises(ServiceUnreachable, match="mode 0700"):
        own_directory()
