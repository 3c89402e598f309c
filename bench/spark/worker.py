"""A Spark session that runs commands. It starts by file name in either environment, so it does not import the bench.

A command is a line of JSON on standard input; its response is a line of JSON on the file descriptor that is the only
argument (Spark itself prints to the others). The first line configures the session: {"conf": {...}, "format": "kafka"}.
A response is an object of numbers, or {"error": "..."}; the session continues after it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import IO, Any

from pyspark.sql import DataFrame, SparkSession

ARCHIVE = "archive"  # Penstock's job of that name, which writes Delta and Parquet without Spark's writers


class Worker:
    """One session and its source format."""

    def __init__(self, conf: dict[str, str], format_: str) -> None:
        builder = SparkSession.builder.appName("bench")
        for name, value in conf.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")
        self.format = format_
        if format_ == "penstock":
            import penstock_spark

            penstock_spark.register(self.spark)

    def read(self, command: dict[str, Any]) -> dict[str, float]:
        """Read a whole topic into a sink, as one batch or with AvailableNow. Raises RuntimeError if the sink lacks a
        row."""
        path = Path(command["path"])
        shutil.rmtree(path, ignore_errors=True)
        run = {"batch": self._batch, "AvailableNow": self._stream}[command["mode"]]
        if command["writer"] == ARCHIVE:
            run = self._archive
        started = time.perf_counter()
        rows = run(command, path)
        seconds = time.perf_counter() - started
        if command["sink"] in ("parquet", "delta"):
            rows = self._rows_in(path / "out", command["sink"])
        shutil.rmtree(path, ignore_errors=True)
        if rows is not None and rows != command["rows"]:
            raise RuntimeError(f"{rows} rows came out, {command['rows']} are in the topic")
        return {"seconds": seconds, "rows_per_s": command["rows"] / seconds}

    def _batch(self, command: dict[str, Any], path: Path) -> None:
        frame = self.spark.read.format(self.format).options(**command["options"]).load()
        frame.write.format(command["sink"]).mode("overwrite").save(str(path / "out"))

    def _stream(self, command: dict[str, Any], path: Path) -> int:
        frame = self.spark.readStream.format(self.format).options(**command["options"]).load()
        writer = frame.writeStream.format(command["sink"]).option("checkpointLocation", str(path / "checkpoint"))
        if command["sink"] != "noop":
            writer = writer.option("path", str(path / "out"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def _archive(self, command: dict[str, Any], path: Path) -> int:
        """Run the job as `penstock-spark run --once` does, with the compression of Spark's own writers."""
        import msgspec

        from penstock_spark.jobs.kinds import archive
        from penstock_spark.jobs.run.session import ARROW_ROWS, DEFAULTS
        from penstock_spark.jobs.spec.kinds import Archive

        # The `run` command also sets this for its session, and writing depends on it.
        self.spark.conf.set(ARROW_ROWS, DEFAULTS[ARROW_ROWS])

        options = command["options"]
        job = {
            "kind": "archive",
            "name": "bench",
            "checkpoint": str(path / "checkpoint"),
            "source": {"brokers": options["kafka.bootstrap.servers"], "topics": [options["subscribe"]]},
            "trigger": {"once": True},
            "to": {
                "format": command["sink"],
                "path": str(path / "out"),
                "compression": "snappy",
                "compact": None,
            },
        }
        query = archive.start(self.spark, msgspec.convert(job, Archive))
        query.awaitTermination()
        self.spark.conf.unset(ARROW_ROWS)
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    def _rows_in(self, path: Path, sink: str) -> int:
        """Return the number of rows, counted by a reader other than Spark for Penstock's Delta table."""
        if sink == "parquet":
            return self.spark.read.parquet(str(path)).count()
        if self.format == "penstock":
            from deltalake import DeltaTable

            return int(sum(DeltaTable(str(path)).get_add_actions(flatten=True)["num_records"].to_pylist()))
        return self.spark.read.format("delta").load(str(path)).count()

    def write(self, command: dict[str, Any]) -> dict[str, float]:
        """Write prepared rows with keys into a topic, as one batch."""
        frame = _rows(self.spark, command["rows"], command["size_bytes"]).cache()
        try:
            frame.count()
            started = time.perf_counter()
            frame.write.format(self.format).options(**command["options"]).mode("append").save()
            seconds = time.perf_counter() - started
        finally:
            frame.unpersist(blocking=True)
        return {"seconds": seconds, "rows_per_s": command["rows"] / seconds}

    def follow(self, command: dict[str, Any]) -> dict[str, float]:
        """Read a topic in micro-batches during writes. Return the duration of each, from trigger to commit."""
        path = Path(command["path"])
        shutil.rmtree(path, ignore_errors=True)
        frame = self.spark.readStream.format(self.format).options(**command["options"]).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(path))
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            if query.awaitTermination(command["warm_up_s"]):
                raise RuntimeError("the query ended by itself")
            first = max((p["batchId"] for p in query.recentProgress), default=-1)
            query.awaitTermination(command["seconds"])
        finally:
            query.stop()
        batches = [p for p in query.recentProgress if p["batchId"] > first and p["numInputRows"] > 0]
        shutil.rmtree(path, ignore_errors=True)
        if len(batches) < 3:
            raise RuntimeError(f"only {len(batches)} batches had rows")
        took_ms = sorted(float(p["durationMs"]["triggerExecution"]) for p in batches)
        return {
            "p50_ms": statistics.median(took_ms),
            "p99_ms": took_ms[min(len(took_ms) - 1, int(len(took_ms) * 0.99))],
            "batches_per_s": len(batches) / command["seconds"],
        }


def _rows(spark: SparkSession, rows: int, size_bytes: int) -> DataFrame:
    """Return rows of `size_bytes` of text, all different, with a thousand keys."""
    filler = f"repeat(md5(cast(id as string)), {size_bytes // 32 + 1})"
    value = f"substr(concat('order ', id, ' of customer ', id % 9973, ' ', {filler}), 1, {size_bytes})"
    return spark.range(0, rows, 1, 4).selectExpr("cast(id % 1000 as string) as key", f"{value} as value")


def main() -> None:
    answers: IO[str] = os.fdopen(int(sys.argv[1]), "w", buffering=1)
    first = json.loads(sys.stdin.readline())
    try:
        worker = Worker(first["conf"], first["format"])
        answers.write(json.dumps({}) + "\n")
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:4000]}) + "\n")
        return
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer: dict[str, Any] = getattr(worker, command["do"])(command)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:4000]}
        answers.write(json.dumps(answer) + "\n")
    worker.spark.stop()


if __name__ == "__main__":
    main()
