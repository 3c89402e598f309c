"""The demo's two jobs as files: what `penstock-spark run` gets. Kept as templates beside this module."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from string import Template

from penstock_spark.jobs.run.session import UNIX_SOCKETS

ARCHIVE, BY_HOUR = "flights-archive", "flights-by-hour"
TOPIC = "flights"
ARCHIVE_BATCHES = 4
"""At least so many: so that there is a middle to be killed in, however fast the machine is."""

TASKS = {ARCHIVE: 2, BY_HOUR: 1}
"""At a time. The archive's wait for the disk; each task has Python workers of its own, which take memory."""


def groups() -> tuple[str, str]:
    """The groups that show how far the jobs are: the default of `progress.group`."""
    return f"spark-{ARCHIVE}", f"spark-{BY_HOUR}"


def checkpoint(directory: Path, job: str) -> Path:
    return directory / "state" / job


def table(directory: Path, job: str) -> Path:
    """Where a job's Delta table is."""
    return directory / "lake" / {ARCHIVE: "flights", BY_HOUR: "flights_by_hour"}[job]


def write(directory: Path, brokers: str, flights: int) -> dict[str, Path]:
    """Both files, by job, in folders of their own, which take what Spark leaves behind."""
    found = {}
    for job in (ARCHIVE, BY_HOUR):
        home = directory / job
        home.mkdir()
        text = (resources.files("penstock_spark.demo") / "templates" / f"{job}.yaml").read_text(encoding="utf-8")
        found[job] = home / f"{job}.yaml"
        values = {
            "brokers": brokers,
            "directory": str(directory),
            "batch_records": str(max(flights // ARCHIVE_BATCHES, 1)),
            "spark": json.dumps(spark_settings(home, TASKS[job])),  # JSON is YAML
        }
        found[job].write_text(Template(text).substitute(values), encoding="utf-8")
    return found


def spark_settings(home: Path, tasks: int) -> dict[str, str]:
    """Two small JVMs on a small machine, for a minute; nothing outside of `home`."""
    return {
        "spark.master": f"local[{tasks}]",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        # A driver that is killed would leave its socket behind, outside of `home`.
        UNIX_SOCKETS: "false",
        # What compiles code to its utmost is slower in a JVM of a minute's life.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={home} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
        ),
    }
