"""A committed batch that is repeated is skipped if it is identical, and rejected otherwise."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from penstock_spark_kit.batches_written import Run, batches, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic

from penstock.client import NO_POSITION, TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.sink import writer
from penstock_spark.sink.attempts import BatchDiffers
from penstock_spark.sink.driver import SinkDriver
from penstock_spark.sink.service_client import ServiceEndpoint
from penstock_spark.sink.transactions import encode_metadata, rows_in_metadata

pytestmark = pytest.mark.integration

StartRun = Callable[..., Run]


def write(run: Run, count: int, first: int = 0) -> None:
    run.write(0, batches(count, first=first))
    run.commit(0)


@pytest.mark.parametrize("rows", [99, 101])
def test_a_batch_with_other_rows_is_refused_and_nothing_is_written(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun, rows: int
) -> None:
    name = topic(2)
    write(start_run(service, penstock.bootstrap, name, batch=4), 100)
    with pytest.raises(BatchDiffers, match=f"it was committed with 100 rows and now has {rows}; the checkpoint was"):
        write(start_run(service, penstock.bootstrap, name, batch=4), rows)
    assert values_of(penstock.bootstrap, name) == wanted(100)


def test_a_batch_before_the_last_is_refused_whatever_it_has(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    write(start_run(service, penstock.bootstrap, name, batch=4), 100)
    write(start_run(service, penstock.bootstrap, name, batch=5), 100, first=100)
    with pytest.raises(BatchDiffers, match="batch 5 was committed already; the checkpoint was set back"):
        write(start_run(service, penstock.bootstrap, name, batch=4), 100)
    assert values_of(penstock.bootstrap, name) == wanted(200)


def test_the_option_has_it_skipped_and_what_follows_is_written(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    write(start_run(service, penstock.bootstrap, name, batch=4), 100)
    write(start_run(service, penstock.bootstrap, name, batch=4, penstock_repeated_batch="skip"), 150)
    write(start_run(service, penstock.bootstrap, name, batch=5), 100, first=100)
    assert values_of(penstock.bootstrap, name) == wanted(200)


def test_a_note_without_rows_is_trusted(
    penstock: Broker, topic: MakeTopic, service: ServiceEndpoint, start_run: StartRun
) -> None:
    name = topic(2)
    run = start_run(service, penstock.bootstrap, name, batch=4)
    Link.to(run.options.connection).commit(f"penstock-spark-{run.query}", {TopicPartition(name, 0): 5}, run.query)
    write(run, 100)
    assert values_of(penstock.bootstrap, name) == []


@pytest.mark.parametrize(
    "note", ["", "other", "other rows=5", "q rows=", "q rows=-5", "q rows=5 ", "q rows=" + "9" * 99]
)
def test_a_note_of_something_else_is_none_of_the_querys(note: str) -> None:
    assert rows_in_metadata(note, "q") is None
    assert rows_in_metadata(encode_metadata("q", 5), "q") == 5
    assert encode_metadata("q", 5).startswith(NO_POSITION)
    assert rows_in_metadata("q rows=7", "q") == 7
    assert rows_in_metadata("q", "q") == -1


def test_a_commit_tells_of_the_rows_that_were_skipped(
    penstock: Broker,
    topic: MakeTopic,
    service: ServiceEndpoint,
    driver: SinkDriver,
    start_run: StartRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = topic(2)
    monkeypatch.setattr(writer, "find_driver", lambda: driver)
    for _ in range(2):
        run = start_run(service, penstock.bootstrap, name, batch=4)
        caplog.clear()
        with caplog.at_level(logging.WARNING, writer.__name__):
            found = run.write(0, batches(100))
            message = writer.TaskMessage(0, found.rows, 0, found.skipped, run.name, found.wrote, run.query)
            writer.commit(run.options, [message], 4)
    assert f"query {run.query}: 100 rows of batch 4 are not written again" in caplog.text
    assert values_of(penstock.bootstrap, name) == wanted(100)
