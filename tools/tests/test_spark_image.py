"""Commands that the Spark image starts for given arguments: a fake `tini` prints its command instead of running it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "docker" / "spark" / "entrypoint.sh"
EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_EXECUTOR_POD_NAME": "job-exec-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf",
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\npwd\n')
    tini.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


def start(path: str, *arguments: str, cwd: Path | str = "/tmp", **variables: str) -> tuple[int, list[str], str]:
    """Return the exit code, the words of the command with its working directory, and the error output."""
    environment = {"PATH": path, "SPARK_HOME": "/opt/spark", **variables}
    command = ["bash", str(ENTRYPOINT), *arguments]
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_a_command_runs_as_it_stands(path: str) -> None:
    code, words, _ = start(path, "penstock-spark", "run", "a file.yaml")
    assert (code, words) == (0, ["-s", "--", "penstock-spark", "run", "a file.yaml", "/tmp"])


def test_a_driver_is_a_client_of_its_own_pods_address(path: str) -> None:
    arguments = (
        "--properties-file",
        "/opt/spark/conf/spark.properties",
        "local:///opt/spark/job.py",
        "run",
        "job.yaml",
    )
    code, words, _ = start(path, "driver", *arguments, SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")
    assert code == 0
    assert words[2:5] == ["/opt/spark/bin/spark-submit", "--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.0.0.1" in words
    assert tuple(words[-6:-1]) == arguments


def test_an_executor_gets_its_options_in_order_each_as_one_word(path: str) -> None:
    options = {f"SPARK_JAVA_OPT_{n}": f"-Dp{n}=a b" for n in range(12)}
    code, words, _ = start(path, "executor", **EXECUTOR, **options)
    assert code == 0
    assert words[2] == "java"
    assert words[3:15] == [f"-Dp{n}=a b" for n in range(12)]
    assert words[15:17] == ["-Xms1024m", "-Xmx1024m"]
    assert words[19] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    told = dict(zip(words[20:-1:2], words[21:-1:2], strict=True))
    assert told == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "job-exec-7",
    }


def test_the_classpath_has_settings_first_and_what_a_job_adds_before_spark(path: str) -> None:
    _, words, _ = start(path, "executor", **EXECUTOR, SPARK_CLASSPATH="/jars/mine.jar", HADOOP_CONF_DIR="/etc/hadoop")
    assert words[words.index("-cp") + 1] == "/opt/spark/conf:/jars/mine.jar:/opt/spark/jars/*:/etc/hadoop"


def test_an_executor_without_options_has_none(path: str) -> None:
    code, words, _ = start(path, "executor", **EXECUTOR, JAVA_HOME="/opt/java")
    assert (code, words[2:5]) == (0, ["/opt/java/bin/java", "-Xms1024m", "-Xmx1024m"])


@pytest.mark.parametrize("lacking", ["SPARK_DRIVER_URL", "SPARK_EXECUTOR_POD_NAME", "SPARK_RESOURCE_PROFILE_ID"])
def test_an_executor_that_was_not_told_enough_says_what_lacks(path: str, lacking: str) -> None:
    code, words, complaint = start(path, "executor", **{k: v for k, v in EXECUTOR.items() if k != lacking})
    assert (code, words) == (64, [])
    assert f"not set: {lacking}." in complaint


@pytest.mark.parametrize("arguments", [(), ("executor", "--cores", "2"), ("driver", "job.py")])
def test_what_cannot_be_started_is_refused(path: str, arguments: tuple[str, ...]) -> None:
    code, words, complaint = start(path, *arguments, **EXECUTOR)
    assert code != 0
    assert words == []
    assert complaint


def test_a_folder_that_cannot_be_written_is_left_for_one_that_can(path: str) -> None:
    # No user can write there, including root.
    folder = Path(start(path, "true", cwd="/proc/self")[1][-1])
    assert folder.name.startswith("spark-work.")
    folder.rmdir()
