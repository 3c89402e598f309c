"""Runs the cases with one format in one Spark, and writes the results. Both environments run this file as a program:

    python reading_program.py FORMAT BOOTSTRAP CASES.json OUT.json WORK_DIR [JAR ...]

It imports only pyspark, and uses only features of 4.0.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

LIMIT_S = 120


def main() -> None:
    name, bootstrap, cases, out, work, *jars = sys.argv[1:]
    spark = session(Path(work), jars)
    found = {}
    for number, case in enumerate(json.loads(Path(cases).read_text())):
        options = {"kafka.bootstrap.servers": bootstrap, **case["options"]}
        try:
            if case["streaming"]:
                found[case["name"]] = streamed(spark, name, options, Path(work) / str(number))
            else:
                found[case["name"]] = {"rows": rows(spark.read.format(name).options(**options).load())}
        except Exception as error:  # any error is a result to compare
            found[case["name"]] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(name, case["name"], "error" if "error" in found[case["name"]] else "read", flush=True)
    Path(out).write_text(json.dumps(found))
    spark.stop()


def session(work: Path, jars: list) -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("equivalence")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    if jars:
        settings["spark.jars"] = ",".join(jars)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(frame: DataFrame) -> list:
    """Return comparable rows: bytes as hexadecimal digits, times as microseconds."""
    columns = [
        f.hex("key").alias("key"),
        f.hex("value").alias("value"),
        "topic",
        "partition",
        "offset",
        f.unix_micros("timestamp").alias("timestamp"),
        "timestampType",
    ]
    if "headers" in frame.columns:
        columns.append(
            f.transform("headers", lambda h: f.struct(h["key"].alias("key"), f.hex(h["value"]).alias("value"))).alias(
                "headers"
            )
        )
    found = [row.asDict(recursive=True) for row in frame.select(*columns).collect()]
    types = frame.schema.simpleString()
    return [types, *sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))]


def streamed(spark: SparkSession, name: str, options: dict, work: Path) -> dict:
    """Return the rows, and the end of each batch."""
    reading = spark.readStream.format(name).options(**options).load()
    schema = reading.schema
    query = (
        reading.writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("path", str(work / "out"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(LIMIT_S):
        query.stop()
        raise TimeoutError(f"the query was not over after {LIMIT_S} s")
    ends = []
    for progress in query.recentProgress:
        end = json.loads(progress.sources[0].endOffset)
        if progress.numInputRows or not ends:
            ends.append({topic: parts for topic, parts in end.items() if not topic.startswith("@")})
    return {"rows": rows(spark.read.schema(schema).parquet(str(work / "out"))), "ends": ends}


if __name__ == "__main__":
    main()
