"""Rows that a database deletes are deleted, for every format of changes in the guide and the template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.jobs import build_job, run_once
from penstock_spark_kit.topics import MakeTopic, Rec, produce
from pyspark.sql import DataFrame, SparkSession

from penstock_spark.jobs.examples import example
from penstock_spark.jobs.kinds.cdc_upsert import DELETED, changed, latest
from penstock_spark.jobs.run import reading
from penstock_spark.jobs.spec.kinds import CdcUpsert
from penstock_spark.model.columns import DDL_WITH_HEADERS

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("spark-jobs"), pytest.mark.timeout(600)]
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "jobs.md"
BASE = """
kind: cdc-upsert
name: changes
source: {brokers: "127.0.0.1:9092", topics: [changes]}
checkpoint: c
to: {format: delta, path: p}
"""
Change = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


def taught() -> list[str]:
    """Return the job snippets in the guide's section on changes."""
    section = GUIDE.read_text().split("## Changes of a database\n")[1].split("\n## ")[0]
    return re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()


def written(form: str, key: int, name: str | None) -> list[Change]:
    """Return the records that Debezium writes for a row's new name or its deletion, in the format of a snippet."""
    is_nested, is_wrapped, is_marked = "payload" in form, "after" in form, "__deleted" in form
    key_of = {"id": key}
    row: object = {"id": key, "name": name} if name is not None else None
    if is_wrapped:
        row = {"op": "d" if row is None else "u", "before": {"id": key, "name": "before"}, "after": row}
    elif is_marked:
        row = {"id": key, "name": name, "__deleted": "true" if name is None else "false"}

    def enveloped(payload: object) -> bytes:
        return json_of({"schema": {"type": "struct"}, "payload": payload} if is_nested else payload)

    found: list[Change] = [(enveloped(key_of), None if row is None else enveloped(row))]
    return [*found, (found[0][0], None)] if name is None else found


def records_of(spark: SparkSession, changes: Sequence[Change]) -> DataFrame:
    then = datetime(2024, 1, 1, tzinfo=UTC)
    rows = [(key, value, "changes", 0, offset, then, 0, None) for offset, (key, value) in enumerate(changes)]
    return spark.createDataFrame(rows, DDL_WITH_HEADERS)


def merged(spark: SparkSession, job: CdcUpsert, batches: Sequence[Sequence[Change]]) -> dict[object, object]:
    """Return the remaining rows by key after batches, as a merge of `latest` leaves them."""
    left: dict[object, object] = {}
    (key,) = job.keys
    for batch in batches:
        rows = changed(reading.decode(records_of(spark, batch), job.transform), job)
        for row in latest(rows, (key,)).collect():
            found = row.asDict(recursive=True)
            name, is_deleted = found.pop(key), found.pop(DELETED)
            left.pop(name, None)
            if not is_deleted:
                left[name] = found
    return left


def cdc(*parts: str, sets: Sequence[str] = ()) -> CdcUpsert:
    job = build_job(BASE + "".join(parts), *sets)
    assert isinstance(job, CdcUpsert)
    return job


def test_the_guide_teaches_the_forms_of_debezium() -> None:
    assert len(taught()) == 4


@pytest.mark.parametrize("form", taught(), ids=["envelope", "schemas", "unwrapped", "rewritten"])
def test_every_form_that_the_guide_teaches_deletes_and_inserts_again(spark: SparkSession, form: str) -> None:
    def of(key: int, name: str | None) -> list[Change]:
        return written(form, key, name)

    first = [*of(1, "stays"), *of(2, "goes"), *of(2, None), *of(3, "goes later"), *of(4, None), *of(5, "old")]
    second = [*of(3, None), *of(2, None), *of(4, "new"), *of(5, None), *of(5, "again"), *of(6, "x"), *of(6, None)]
    left = merged(spark, cdc(form), [first, second])
    assert left == {1: {"name": "stays"}, 4: {"name": "new"}, 5: {"name": "again"}}


PLAIN = """
transform: {value: {format: json, schema: "op STRING, name STRING"}}
keys: {k: CAST(key AS STRING)}
"""


@pytest.mark.parametrize("condition", ["value.op = 'd'", "NOT value.op <> 'd'", "value.op IN ('d')", "NULL"])
def test_a_tombstone_deletes_whatever_the_condition_makes_of_it(spark: SparkSession, condition: str) -> None:
    changes: list[Change] = [(b"a", b'{"name": "n"}'), (b"b", b'{"name": "n"}'), (b"b", None)]
    left = merged(spark, cdc(PLAIN, sets=[f"delete_when={condition}", "select={name: value.name}"]), [changes])
    assert left == {"a": {"name": "n"}}


def test_what_a_job_ignores_or_cannot_read_changes_no_row(spark: SparkSession) -> None:
    sets = ["tombstones=ignore", "null_keys=skip", "transform.value.on_error=null"]
    batches: list[list[Change]] = [
        [(b"a", b'{"name": "n"}'), (None, b'{"name": "no key"}')],
        [(b"a", None), (b"a", b"{no json"), (None, None)],
    ]
    assert merged(spark, cdc(PLAIN, sets=sets), batches) == {"a": {"op": None, "name": "n"}}


@pytest.mark.parametrize(
    ("change", "keys", "told"),
    [
        ((None, b"{}"), "CAST(key AS STRING)", 'changes-0 offset 1: key "k" is NULL (CAST(key AS STRING)); derive it'),
        ((b"b", None), "value.name", 'changes-0 offset 1: key "k" is NULL (value.name); derive it'),
        ((b"\xff\xfe", b"{}"), "CAST(key AS STRING)", 'changes-0 offset 1: key "k" is not UTF-8 (CAST(key AS STRING))'),
    ],
)
def test_a_record_that_names_no_row_fails_the_job_with_its_place(
    spark: SparkSession, change: Change, keys: str, told: str
) -> None:
    job = cdc(PLAIN, sets=[f"keys={{k: {keys}}}"])
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION") as raised:
        merged(spark, job, [[(b"a", b'{"name": "a"}'), change]])
    assert told in str(raised.value)


def test_deletions_that_come_twice_and_late_leave_no_row_in_the_table(
    spark: SparkSession, penstock: Broker, topic: MakeTopic, tmp_path: Path
) -> None:
    """Uses the template with its comment's setting for Debezium, and a real table."""
    name = topic(1, {"retention.ms": "-1"})
    text = re.sub(r"^# (delete_when: [^#]*).*$", r"\1", example("cdc-upsert"), flags=re.MULTILINE)
    assert "\ndelete_when: value.op = 'd'" in text
    sets = [f"source.brokers={penstock.bootstrap}", f"source.topics=[{name}]", f"checkpoint={tmp_path}/checkpoint"]
    sets += [f"to.path={tmp_path}/planes", "transform.value.schema=op STRING, seats INT"]

    def write(*changes: tuple[bytes, str | None]) -> None:
        produce(penstock.bootstrap, name, [Rec(v.encode() if v is not None else None, key) for key, v in changes])

    row, gone = '{"op": "c", "seats": 5}', '{"op": "d"}'
    write((b"a", row), (b"b", row), (b"b", gone), (b"b", None), (b"c", row), (b"d", None))
    run_once(spark, text, *sets)
    write((b"b", gone), (b"b", None), (b"c", gone), (b"c", None), (b"e", row), (b"a", gone), (b"a", None), (b"a", row))
    run_once(spark, text, *sets)
    rows = DeltaTable(f"{tmp_path}/planes").to_pyarrow_table().to_pylist()
    assert sorted((r["tailnum"], r["op"], r["seats"]) for r in rows) == [("a", "c", 5), ("e", "c", 5)]
