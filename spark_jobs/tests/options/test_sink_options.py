"""The writer's options."""

from __future__ import annotations

import pytest

from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.sink import DeliveryGuarantee, SinkOptions

GIVEN = {"kafka.bootstrap.servers": "a:9092"}


def parsed(**more: str) -> SinkOptions:
    return SinkOptions.parse(GIVEN | more)


def test_defaults() -> None:
    options = parsed()
    assert (options.topic, options.delivery, options.codec) == (None, DeliveryGuarantee.AT_LEAST_ONCE, 0)
    assert (options.acks, options.idempotent, options.in_flight) == (-1, True, 5)
    assert options.warnings == ()


def test_what_spark_adds_by_itself_is_no_option() -> None:
    assert parsed(checkpointLocation="/x", queryName="q").warnings == ()


def test_exactly_once() -> None:
    options = parsed(**{"penstock.delivery": "exactly-once", "penstock.transactional.id": "me", "topic": " t "})
    assert (options.delivery, options.transactional_id, options.topic) == (DeliveryGuarantee.EXACTLY_ONCE, "me", "t")


def test_a_repeated_batch_is_compared_unless_it_is_to_be_skipped() -> None:
    assert not parsed().skips_repeated
    assert parsed(**{"penstock.repeated.batch": "skip"}).skips_repeated
    with pytest.raises(InvalidOption, match="compare, skip"):
        parsed(**{"penstock.repeated.batch": "write"})


def test_kafka_settings_that_have_a_meaning_are_obeyed() -> None:
    options = parsed(
        **{
            "kafka.compression.type": "zstd",
            "kafka.batch.size": "1000",
            "kafka.max.request.size": "5000",
            "kafka.delivery.timeout.ms": "77",
            "kafka.transaction.timeout.ms": "88",
            "kafka.acks": "1",
        }
    )
    assert (options.codec, options.batch_bytes, options.request_bytes) == (4, 1000, 5000)
    assert (options.connection.give_up_ms, options.transaction_timeout_ms) == (77, 88)
    assert (options.acks, options.idempotent) == (1, False)


def test_brokers_are_asked_to_create_topics_unless_the_option_says_no() -> None:
    assert parsed().creates_topics
    assert not parsed(**{"kafka.allow.auto.create.topics": "false"}).creates_topics
    with pytest.raises(InvalidOption, match="true or false"):
        parsed(**{"kafka.allow.auto.create.topics": "no"})


def test_a_batch_is_not_larger_than_a_request() -> None:
    assert parsed(**{"kafka.max.request.size": "10"}).batch_bytes == 10


@pytest.mark.parametrize("name", ["kafka.linger.ms", "kafka.buffer.memory", "kafka.retries", "includeHeaders"])
def test_what_has_no_meaning_is_warned_about(name: str) -> None:
    (warning,) = parsed(**{name: "1"}).warnings
    assert name in warning


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kafka.transactional.id": "x"}, "penstock.delivery"),
        ({"kafka.key.serializer": "X"}, "strings or binary"),
        ({"kafka.partitioner.class": "X"}, 'column "partition"'),
        ({"penstock.delivery": "exactly once"}, "at-least-once, exactly-once"),
        ({"penstock.delivery": "exactly-once", "kafka.acks": "1"}, "exactly-once delivery needs acks=all"),
        ({"kafka.acks": "1", "kafka.enable.idempotence": "true"}, 'must be "all"'),
        ({"kafka.enable.idempotence": "true", "kafka.max.in.flight.requests.per.connection": "6"}, "at most 5"),
        ({"kafka.compression.type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"kafka.compresion.type": "zstd"}, 'did you mean "kafka.compression.type"'),
        ({"subscribe": "t"}, 'unknown option "subscribe"'),
        ({"path": "t"}, "topics have no path"),
        ({"topic": ""}, "empty"),
    ],
)
def test_what_is_refused(more: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parsed(**more)
