"""The reader's options: names, defaults, precedence and errors of Spark's own Kafka connector."""

from __future__ import annotations

import pickle

import pytest

from penstock.client import TopicPartition
from penstock_spark.model.errors import InvalidOption
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock_spark.options.source import BoundKind, OffsetBound, SelectionKind, SourceOptions

GIVEN = {"kafka.bootstrap.servers": "a:9092,b:9093", "subscribe": "flights"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def stream(**more: str) -> SourceOptions:
    return SourceOptions.parse(GIVEN | more, streaming=True)


def batch(**more: str) -> SourceOptions:
    return SourceOptions.parse(GIVEN | more, streaming=False)


def test_a_stream_begins_at_the_latest_offsets_and_a_batch_reads_everything() -> None:
    assert stream().starting == OffsetBound(BoundKind.EVERYWHERE, LATEST)
    assert (batch().starting, batch().ending) == (
        OffsetBound(BoundKind.EVERYWHERE, EARLIEST),
        OffsetBound(BoundKind.EVERYWHERE, LATEST),
    )


def test_defaults_are_the_connectors() -> None:
    parsed = stream()
    assert parsed.connection.bootstrap == "a:9092,b:9093"
    assert parsed.fail_on_data_loss
    assert parsed.isolation == READ_UNCOMMITTED
    assert not parsed.include_headers
    assert (parsed.max_offsets_per_trigger, parsed.min_offsets_per_trigger) == (None, None)
    assert parsed.max_trigger_delay_ms == 15 * 60_000
    assert (parsed.retries, parsed.retry_interval_ms) == (3, 1000)
    assert parsed.warnings == ()


def test_names_are_taken_in_any_case() -> None:
    parsed = SourceOptions.parse(
        {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "a", "failondataloss": "FALSE", "IncludeHeaders": "True"},
        streaming=True,
    )
    assert (parsed.fail_on_data_loss, parsed.include_headers) == (False, True)


def test_options_can_be_pickled_for_the_tasks() -> None:
    parsed = batch(startingOffsets='{"flights": {"0": -2}}')
    assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_subscribe_names_topics_between_commas() -> None:
    selection = SourceOptions.parse(GIVEN | {"subscribe": " b ,a,,"}, streaming=True).selection
    assert (selection.choice, selection.topics) == (SelectionKind.SUBSCRIBE, {"a", "b"})
    assert selection.selects("a")
    assert not selection.selects("ab")


def test_a_pattern_is_found_anywhere_in_a_name() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "light.$"}
    selection = SourceOptions.parse(given, streaming=True).selection
    assert selection.names is None
    assert selection.selects("flights")
    assert not selection.selects("flights-old")


def test_assign_names_partitions() -> None:
    given = {"kafka.bootstrap.servers": "a:1", "assign": '{"t": [0, 1]}'}
    selection = SourceOptions.parse(given, streaming=True).selection
    assert (selection.partitions, selection.names) == ({T0, T1}, {"t"})


@pytest.mark.parametrize(
    ("more", "bound"),
    [
        ({"startingOffsets": "EARLIEST"}, OffsetBound(BoundKind.EVERYWHERE, EARLIEST)),
        ({"startingOffsets": '{"t": {"0": 23, "1": -1}}'}, OffsetBound(BoundKind.OFFSETS, each={T0: 23, T1: LATEST})),
        ({"startingTimestamp": "1000"}, OffsetBound(BoundKind.TIME, 1000)),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 5}}'}, OffsetBound(BoundKind.TIMES, each={T0: 5})),
        ({"startingTimestamp": "1", "startingOffsets": "earliest"}, OffsetBound(BoundKind.TIME, 1)),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "startingOffsets": "earliest"},
            OffsetBound(BoundKind.TIMES, each={T0: 5}),
        ),
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"t": {"0": 5}}'}, OffsetBound(BoundKind.TIME, 1)),
    ],
)
def test_where_a_stream_begins(more: dict[str, str], bound: OffsetBound) -> None:
    assert stream(**more).starting == bound


def test_limits_and_times() -> None:
    parsed = stream(
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="90s",
        minPartitions="7",
        maxRecordsPerPartition="500",
        **{"fetchOffset.numRetries": "9", "fetchOffset.retryIntervalMs": "20", "kafkaConsumer.pollTimeoutMs": "512"},
    )
    assert (parsed.max_offsets_per_trigger, parsed.min_offsets_per_trigger) == (1000, 10)
    assert parsed.max_trigger_delay_ms == 90_000
    assert (parsed.min_partitions, parsed.max_records_per_partition) == (7, 500)
    assert (parsed.retries, parsed.retry_interval_ms) == (9, 20)
    assert parsed.connection.give_up_ms == 512


def test_kafka_settings_that_have_a_meaning_are_obeyed() -> None:
    parsed = stream(
        **{
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "1234",
            "kafka.socket.connection.setup.timeout.ms": "99",
            "kafka.max.partition.fetch.bytes": "1000",
        }
    )
    assert parsed.isolation == READ_COMMITTED
    connection = parsed.connection
    assert (connection.client_id, connection.request_timeout_ms, connection.connect_timeout_ms) == ("me", 1234, 99)
    assert parsed.sizes.partition_bytes == 1000
    assert parsed.warnings == ()


def test_the_smaller_of_two_fetch_sizes_counts() -> None:
    sizes = {"kafka.max.partition.fetch.bytes": "1000", "kafka.fetch.max.bytes": "10"}
    assert stream(**sizes).sizes.partition_bytes == 10


def test_progress_goes_to_the_named_group_or_else_to_the_consumers() -> None:
    assert stream().progress_group is None
    assert stream(**{"kafka.group.id": "g"}).progress_group == "g"
    assert stream(**{"kafka.group.id": "g", "penstock.progress.group": "p"}).progress_group == "p"


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({"kafka.fetch.min.bytes": "1"}, "kafka.fetch.min.bytes"),
        ({"kafka.max.poll.records": "1"}, "kafka.max.poll.records"),
        ({"kafka.check.crcs": "false"}, "CRC of each batch is always checked"),
        ({"kafka.group.id": "g", "groupIdPrefix": "p"}, "groupIdPrefix"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "security protocol PLAINTEXT"),
    ],
)
def test_what_has_no_meaning_is_warned_about(more: dict[str, str], warned: str) -> None:
    (warning,) = stream(**more).warnings
    assert warned in warning


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_triggers_have_no_meaning_in_a_batch(name: str) -> None:
    (warning,) = batch(**{name: "1"}).warnings
    assert name in warning


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"endingOffsets": "latest"}, '"endingOffsets" is for batch queries'),
        ({"endingTimestamp": "1"}, '"endingTimestamp" is for batch queries'),
        ({"endingOffsetsByTimestamp": "{}"}, '"endingOffsetsByTimestamp" is for batch queries'),
        ({"startingOffsets": "first"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "at least -2"),
        ({"startingOffsets": '{"t": {"x": 3}}'}, 'invalid partition "x"'),
        ({"startingOffsets": '{"t": {"0": true}}'}, '"True" is not a whole number'),
        ({"startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "duplicate name"),
        ({"startingOffsets": '{"t": 3}'}, '"3" is not an object'),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "at least 0"),
        ({"startingTimestamp": "yesterday"}, "whole number"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error, latest"),
        ({"minPartitions": "0"}, "at least 1|from 1"),
        ({"maxRecordsPerPartition": "0"}, "at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "whole number"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, 'more than "maxOffsetsPerTrigger"'),
        ({"maxTriggerDelay": "soon"}, "500ms, 10s, 5m"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"assign": '{"t": [0]}'}, "exactly one of .* 2 are set"),
        ({"path": "/x"}, "topics have no path"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets"),
        ({"kafka.enable.auto.commit": "true"}, "checkpoint"),
        ({"kafka.key.deserializer": "X"}, "keys are binary"),
        ({"kafka.value.deserializer": "X"}, "values are binary"),
        ({"kafka.interceptor.classes": "X"}, "interceptors"),
        ({"kafka.isolation.level": "serializable"}, "read_uncommitted, read_committed"),
        ({"kafka.sasl.oauthbearer.token.endpoint.url": "x"}, "PLAIN or SCRAM"),
        ({"startingOffset": "latest"}, 'did you mean "startingOffsets"'),
        ({"kafka.isolation.leve": "x"}, 'did you mean "kafka.isolation.level"'),
        ({"isolation.level": "read_committed"}, 'did you mean "kafka.isolation.level"'),
        ({"kafka.acks": "all"}, 'unknown option "kafka.acks"'),
        ({"header": "true"}, 'unknown option "header"'),
        ({"penstock.progress.group": " "}, "is empty"),
        ({"kafka.group.id": "g" * 250}, "at most 249"),
    ],
)
def test_what_is_refused_in_a_stream_and_why(more: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        stream(**more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"startingOffsets": "latest"}, "must not be latest"),
        ({"endingOffsets": "earliest"}, "must not be earliest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "t-0 must not be latest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "t-0 must not be earliest"),
        ({"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"0": 4}}'}, "the start 5 is after the end 4"),
        ({"startingOffsets": '{"t": {"0": 5}}', "endingOffsets": '{"t": {"1": 9}}'}, "same partitions"),
        (
            {"startingOffsetsByTimestamp": '{"t": {"0": 5}}', "endingOffsetsByTimestamp": '{"t": {"0": 4}}'},
            "the start 5 is after",
        ),
    ],
)
def test_what_is_refused_in_a_batch(more: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        batch(**more)


@pytest.mark.parametrize("given", [{}, {"subscribe": "a"}, {"kafka.bootstrap.servers": "a:1"}])
def test_brokers_and_topics_are_needed(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=r"exactly one of|is missing"):
        SourceOptions.parse(given, streaming=False)


@pytest.mark.parametrize(
    "value", ["a:", ":1", "a:0", "a:65536", ",", "a b:1", "a:1;b:2", "::1:9092", "SSL://a:1", "http://a:1"]
)
def test_addresses_that_are_none(value: str) -> None:
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
        stream(**{"kafka.bootstrap.servers": value})


def test_the_same_brokers_make_the_same_connection() -> None:
    spelt = stream(**{"kafka.bootstrap.servers": " PLAINTEXT://a:9092 , b:9093"})
    assert spelt.connection == stream().connection


def test_a_monstrous_option_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidOption, match="characters"):
        stream(startingOffsets="{" * (1 << 21))


def test_deep_json_is_an_error_like_any_other() -> None:
    with pytest.raises(InvalidOption, match="startingOffsets"):
        stream(startingOffsets='{"t":' + "[" * 100_000)
