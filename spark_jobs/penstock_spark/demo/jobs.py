"""Writes the job files of the demo's two jobs, from the templates beside this module."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from string import Template

from penstock_spark.jobs.run.session import UNIX_SOCKETS

ARCHIVE, BY_HOUR = "flights-archive", "flights-by-hour"
TOPIC = "flights"
MIN_ARCHIVE_BATCHES = 4
"""Minimum number of batches, so that the archive can be killed in the middle on any machine."""

TASKS = {ARCHIVE: 2, BY_HOUR: 1}
"""Parallel tasks. The archive's tasks wait for the disk; each task has Python workers, which need memory."""


def groups() -> tuple[str, str]:
    """Return the jobs' progress groups: the default of `progress.group`."""
    return f"spark-{ARCHIVE}", f"spark-{BY_HOUR}"


def checkpoint(directory: Path, job: str) -> Path:
    """Return a job's checkpoint folder."""
    return directory / "state" / job


def table(directory: Path, job: str) -> Path:
    """Return the folder of a job's Delta table."""
    return directory / "lake" / {ARCHIVE: "flights", BY_HOUR: "flights_by_hour"}[job]


def write(directory: Path, brokers: str, flights: int) -> dict[str, Path]:
    """Write both job files, each in a folder that also gets Spark's files. Return their paths by job."""
    found = {}
    for job in (ARCHIVE, BY_HOUR):
        home = directory / job
        home.mkdir()
        text = (resources.files("penstock_spark.demo") / "templates" / f"{job}.yaml").read_text(encoding="utf-8")
        found[job] = home / f"{job}.yaml"
        values = {
            "brokers": brokers,
            "directory": str(directory),
            "batch_records": str(max(flights // MIN_ARCHIVE_BATCHES, 1)),
            "spark": json.dumps(spark_settings(home, TASKS[job])),  # JSON is YAML
        }
        found[job].write_text(Template(text).substitute(values), encoding="utf-8")
    return found


def spark_settings(home: Path, tasks: int) -> dict[str, str]:
    """Return settings for two small JVMs on a small machine, with all files in `home`."""
    return {
        "spark.master": f"local[{tasks}]",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        # A killed driver would leave its socket behind, outside `home`.
        UNIX_SOCKETS: "false",
        # Optimised JIT compilation does not pay off in a JVM that lives a minute.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={home} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
        ),
    }
