"""`penstock produce` and `penstock consume` against a broker."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.consume import ConsumeOptions, ConsumeRun
from penstock.client import Consumer, Producer
from penstock.client.cluster import ClusterConnections
from penstock.wire.batch import CRC, checksum
from penstock.wire.batch_builder import build_batch
from penstock.wire.compression import Codec
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.record import Record

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


def values(cli: Cli, topic: str, *options: str) -> list[Any]:
    return [json.loads(line)["value"] for line in cli("consume", topic, "--output", "json", *options).lines]


def test_lines_go_in_and_come_out(cli: Cli, topic: str) -> None:
    sent = cli("produce", topic, stdin="one\ntwo\r\nthree")
    assert (sent.code, sent.out, sent.err) == (0, "", f"sent 3 messages to {topic}\n")
    assert sorted(cli("consume", topic).lines) == ["one", "three", "two"]


def test_a_key_stands_before_the_separator(cli: Cli, topic: str) -> None:
    cli("produce", topic, "-K", ":", stdin="UA:EWR:IAH\nno key\n")
    found = [json.loads(line) for line in cli("consume", topic, "--output", "json").lines]
    assert sorted((m["key"], m["value"]) for m in found if m["key"]) == [("UA", "EWR:IAH")]
    assert [m["value"] for m in found if m["key"] is None] == ["no key"]
    assert "UA|EWR:IAH" in cli("consume", topic, "--key-separator", "|").lines


def test_a_file_is_read_and_a_missing_one_is_named(cli: Cli, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{n}\n" for n in range(5_000)))
    sent = cli("produce", topic, str(path), "--output", "json").json
    assert (sent["messages"], sent["topic"]) == (5_000, topic)
    assert sorted(map(int, cli("consume", topic).lines)) == list(range(5_000))
    missing = cli("produce", topic, str(tmp_path / "nothing"))
    assert (missing.code, "nothing" in missing.err) == (1, True)


def test_what_consume_writes_as_json_produce_reads(cli: Cli, topic: str, name: str) -> None:
    documents = [
        {"key": "k", "value": "v", "headers": {"a": "b"}, "partition": 1, "timestamp_ms": 1234},
        {"key": None, "value": None, "partition": 0},
        {"value": {"nested": [1, 2]}, "partition": 0},
        {"value_base64": base64.b64encode(b"\xff\x00").decode(), "partition": 0},
    ]
    cli("produce", topic, "--format", "json", stdin="\n".join(map(json.dumps, documents)))
    first = cli("consume", topic, "--output", "json").out
    copy = f"{name}-copy"
    cli("topic", "create", copy, "-p", "2")
    assert cli("produce", copy, "--format", "json", stdin=first).code == 0
    second = cli("consume", copy, "--output", "json").out
    cli("topic", "delete", copy, "--yes")

    def plain(text: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in text.splitlines()]
        return sorted(({**m, "topic": ""} for m in found), key=lambda m: (m["partition"], m["offset"]))

    assert plain(first) == plain(second)
    zero, one = plain(first)[:3], plain(first)[3]
    assert (one["key"], one["value"], one["headers"], one["timestamp_ms"]) == ("k", "v", {"a": "b"}, 1234)
    assert [m.get("value", m.get("value_base64")) for m in zero] == [None, '{"nested": [1, 2]}', "/wA="]


def test_a_copy_has_the_headers_of_its_original_whatever_they_hold(cli: Cli, topic: str, bootstrap: str) -> None:
    given: list[list[tuple[str, bytes | None]]] = [
        [("trace", b"\x00\xff\x80"), ("n", b"1"), ("n", b"2"), ("none", None)],
        [("plain", b"text"), ("none", None)],
        [],
    ]

    async def send() -> None:
        async with Producer(bootstrap) as producer:
            for number, headers in enumerate(given):
                await producer.send(topic, b"%d" % number, partition=0, headers=headers)

    async def received() -> list[list[tuple[str, bytes | None]]]:
        async with Consumer(bootstrap, offset_reset="earliest") as consumer:
            consumer.assign([(topic, 0)])
            return [list((await consumer.getone()).headers) for _ in range(6)]

    asyncio.run(send())
    written = cli("consume", topic, "--output", "json").out
    assert [json.loads(line).get("headers") for line in written.splitlines()][1:] == [
        {"plain": "text", "none": None},
        None,
    ]
    assert cli("produce", topic, "--format", "json", stdin=written).code == 0
    assert asyncio.run(received()) == given * 2


def test_produce_creates_a_topic_unless_it_must_not(cli: Cli, name: str) -> None:
    refused = cli("produce", name, "--no-auto-create", stdin="one\n")
    assert refused.code != 0
    assert f'topic "{name}" does not exist' in refused.err
    assert name not in cli("topic", "list").out
    assert cli("produce", name, stdin="one\n").code == 0
    assert cli("consume", name).lines == ["one"]


def test_consume_creates_no_topic(cli: Cli, name: str) -> None:
    assert f'topic "{name}" does not exist' in cli("consume", name).err
    assert name not in cli("topic", "list").out


def test_produce_stops_when_a_message_is_refused_though_its_input_goes_on(cli: Cli, topic: str, bootstrap: str) -> None:
    assert cli("topic", "alter", topic, "--config", "max.message.bytes=1000").code == 0
    command = [sys.executable, "-m", "penstock.cli", "produce", topic, "--bootstrap", bootstrap]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as producing:
        assert producing.stdin is not None
        assert producing.stderr is not None
        producing.stdin.write(b"x" * 5_000 + b"\n")
        producing.stdin.flush()
        assert producing.wait(60) == 1
        assert b"MESSAGE_TOO_LARGE" in producing.stderr.read()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "invalid JSON"),
        ("5", 'not a JSON object with a "value"'),
        ('{"value": "v", "partition": "x"}', '"partition"'),
        ('{"value": "v", "headers": 5}', "must be an object, or a list"),
        ('{"value": "v", "headers": [{"value": "x"}]}', 'must be an object with a "key"'),
        ('{"value": "v", "headers": [{"key": "x", "value_base64": "?"}]}', "is not valid base64"),
    ],
)
def test_a_document_that_cannot_be_sent_is_named_by_its_line(cli: Cli, topic: str, line: str, says: str) -> None:
    outcome = cli("produce", topic, "--format", "json", stdin='{"value": "fine"}\n' + line + "\n")
    assert outcome.code == 2
    assert "standard input, line 2" in outcome.err
    assert says in outcome.err


def test_a_partition_that_the_target_does_not_have_is_named_with_the_cure(cli: Cli, topic: str) -> None:
    lines = '{"value": "fine", "partition": 1}\n{"value": "v", "partition": 2}\n'
    outcome = cli("produce", topic, "--format", "json", stdin=lines)
    assert outcome.code == 2
    assert "standard input, line 2" in outcome.err
    assert f'partition "2" does not exist: topic "{topic}" has 2 partitions' in outcome.err
    assert "--ignore-partition" in outcome.err


def test_a_copy_into_fewer_partitions_has_the_keys_decide(cli: Cli, topic: str, name: str) -> None:
    source = "".join(f'{{"key": "{n % 7}", "value": "{n}", "partition": {n % 2}}}\n' for n in range(50))
    cli("produce", topic, "--format", "json", stdin=source)
    copy = f"{name}-copy"
    cli("topic", "create", copy, "-p", "1")
    messages = cli("consume", topic, "--output", "json").out
    assert cli("produce", copy, "--format", "json", stdin=messages).code == 2
    assert cli("produce", copy, "--format", "json", "--ignore-partition", stdin=messages).code == 0
    assert set(values(cli, copy)) == {str(n) for n in range(50)}
    cli("topic", "delete", copy, "--yes")


def test_one_partition_for_all_and_none_at_all_contradict_each_other(cli: Cli, topic: str) -> None:
    outcome = cli("produce", topic, "--partition", "0", "--ignore-partition", stdin="x")
    assert (outcome.code, "--partition" in outcome.err) == (2, True)


def test_reading_begins_where_it_is_told_to(cli: Cli, topic: str) -> None:
    lines = [json.dumps({"value": str(n), "timestamp_ms": 1000 * (n + 1)}) for n in range(10)]
    cli("produce", topic, "--format", "json", "--partition", "0", stdin="\n".join(lines))
    assert values(cli, topic, "--offset", "7") == ["7", "8", "9"]
    assert values(cli, topic, "--offset", "-2") == ["8", "9"]
    assert values(cli, topic, "--time", "1970-01-01T00:00:09Z") == ["8", "9"]
    assert values(cli, topic, "--count", "2") == ["0", "1"]
    assert values(cli, topic, "--partition", "1") == []
    assert cli("consume", topic, "--details", "--count", "1").out == f"{topic} 0 0 1970-01-01T00:00:01.000Z 0\n"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_goes_on_where_it_was(cli: Cli, topic: str, name: str, protocol: str) -> None:
    cli("produce", topic, stdin="".join(f"{n}\n" for n in range(6)))
    first = cli("consume", topic, "--group", name, "--group-protocol", protocol, "--count", "4").lines
    second = cli("consume", topic, "--group", name, "--group-protocol", protocol).lines
    assert len(first) == 4
    assert sorted(first + second) == [str(n) for n in range(6)]
    assert cli("group", "describe", name, "--output", "json").json["lag"] == 0


def fill_typed(cli: Cli, topic: str) -> None:
    """Send messages "0" to "9" with their number in a header."""
    lines = "".join(json.dumps({"value": str(n), "headers": {"n": str(n)}}) + "\n" for n in range(10))
    cli("produce", topic, "--format", "json", "--partition", "0", stdin=lines)


def test_messages_that_do_not_pass_the_filter_are_left_out(cli: Cli, topic: str) -> None:
    fill_typed(cli, topic)
    assert cli("consume", topic, "--filter", "n >= 3 and not n in (4, 5)", "-n", "3").lines == ["3", "6", "7"]
    assert cli("consume", topic, "--filter", "exists(missing)").lines == []


def test_a_group_moves_past_messages_that_do_not_pass_the_filter(cli: Cli, topic: str, name: str) -> None:
    fill_typed(cli, topic)
    assert cli("consume", topic, "--filter", "n < 2", "--group", name).lines == ["0", "1"]
    assert cli("group", "describe", name, "-o", "json").json["lag"] == 0
    cli("group", "delete", name, "--yes")


def test_a_filter_that_cannot_be_parsed_is_named(cli: Cli, topic: str) -> None:
    refused = cli("consume", topic, "--filter", "n = x")
    assert (refused.code, 'found "x" at character 5' in refused.err) == (2, True)
    shared = cli("consume", topic, "--filter", "n = 1", "--share-group", "g")
    assert (shared.code, "penstock group alter" in shared.err) == (2, True)


def test_a_group_protocol_needs_a_group(cli: Cli, topic: str) -> None:
    outcome = cli("consume", topic, "--group-protocol", "consumer")
    assert outcome.code == 2
    assert "set --group" in outcome.err


def test_follow_shows_what_comes(cli: Cli, topic: str) -> None:
    cli("produce", topic, stdin="before\n")
    assert cli("consume", topic, "--follow", "--from-beginning", "--count", "1").lines == ["before"]


def test_topics_that_are_not_there_end_with_code_3(cli: Cli, name: str) -> None:
    assert cli("consume", name).code == 3
    assert cli("consume", name, "--group", "g").code == 3


def test_contradictions_are_wrong_usage(cli: Cli, topic: str) -> None:
    assert cli("consume", topic, "--offset", "1", "--from-beginning").code == 2
    assert cli("consume", topic, "--group", "g", "--offset", "1").code == 2
    assert cli("consume", topic, "--time", "yesterday").code == 2
    assert cli("produce", topic, "--header", "nonsense", stdin="x").code == 2
    assert cli("produce", topic, "--deliver-at", "-1h", "--deliver-after", "1h", stdin="x").code == 2
    assert cli("produce", topic, "--deliver-after", "soon", stdin="x").code == 2
    assert cli("produce", topic, "--deliver-at", "soon", stdin="x").code == 2


def test_a_brokers_files_are_shown_and_checked_without_a_broker(alone: Cli, tmp_path: Path) -> None:
    batch = build_batch([Record(n, 1000, b"k", b"v%d" % n) for n in range(3)], base_offset=0, leader_epoch=0)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    shown = alone("log", "dump", str(path), "--records", "--output", "json")
    assert shown.code == 0, shown
    assert all(json.loads(line) for line in shown.lines)
    path.write_bytes(batch[:-1] + bytes([batch[-1] ^ 1]))
    assert alone("log", "dump", str(path)).code == 1


async def put(bootstrap: str, topic: str, batch: bytes) -> None:
    """Write a batch to partition 0 unchanged."""
    cluster = ClusterConnections(
        bootstrap, client_id="t", request_timeout_ms=30_000, metadata_max_age_ms=60_000, security=None
    )
    try:
        await cluster.start()
        leader = (await cluster.topic(topic)).partitions[0].leader
        data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, batch)])]
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
        answer = await cluster.call(leader, request, ProduceResponse, timeout_ms=30_000)
        assert answer.responses[0].partition_responses[0].error_code == 0
    finally:
        await cluster.close()


def garbage() -> bytes:
    """Return a batch of three records with invalid contents and a valid CRC."""
    batch = bytearray(build_batch([Record(n, 1000, b"k", b"v%d" % n) for n in range(3)], base_offset=0))
    batch[22] |= Codec.GZIP
    CRC.pack_into(batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return bytes(batch)


def test_a_batch_that_cannot_be_read_stops_reading_or_is_left_out(cli: Cli, topic: str, bootstrap: str) -> None:
    cli("topic", "alter", topic, "--config", "penstock.record.validation=none")
    cli("produce", topic, "--partition", "0", stdin="one\n")
    asyncio.run(put(bootstrap, topic, garbage()))
    cli("produce", topic, "--partition", "0", stdin="two\n")
    stopped = cli("consume", topic)
    assert (stopped.code, stopped.lines) == (1, ["one"])
    for part in (f'topic "{topic}", partition 0, at offset 1', "offsets 1 to 3", "--on-damaged-batch skip"):
        assert part in stopped.err
    skipped = cli("consume", topic, "--on-damaged-batch", "skip")
    assert (skipped.code, skipped.lines) == (0, ["one", "two"])
    assert f'skipped batch of topic "{topic}", partition 0, offsets 1 to 3: ' in skipped.err
    assert "1 damaged batches were skipped" in skipped.err


def test_a_damaged_batch_is_named_and_cut_out_of_a_brokers_files(alone: Cli, tmp_path: Path) -> None:
    path = tmp_path / "t-0" / "00000000000000000000.log"
    path.parent.mkdir()
    path.write_bytes(garbage())
    shown = alone("log", "dump", str(path))
    assert shown.code == 1
    assert f"penstock log cut {path} --offset 0" in shown.out
    saved = tmp_path / "saved"
    cut = alone("log", "cut", str(path), "--offset", "0", "--save", str(saved))
    assert (cut.code, cut.out) == (0, f"removed offsets 0 to 2; their bytes are saved in {saved}\n")
    assert saved.read_bytes() == garbage()
    assert alone("log", "dump", str(path), "--records").code == 0
    again = alone("log", "cut", str(path), "--offset", "0")
    assert (again.code, "is valid" in again.err) == (1, True)
    missing = alone("log", "cut", str(path.with_name("00000000000000000009.log")), "--offset", "9")
    assert (missing.code, "Traceback" in missing.err) == (1, False)


def test_a_member_has_not_finished_while_its_group_is_divided_anew(bootstrap: str, topic: str) -> None:
    """The member's partitions are revoked, and its new assignment is not known yet."""

    def member() -> Consumer:
        return Consumer(bootstrap, group_id=f"{topic}-readers", heartbeat_interval_ms=100, assignors=["range"])

    async def go() -> None:
        async with member() as quiet, member() as reader, member() as third:
            for one in (quiet, reader):
                one.subscribe([topic])
            while not (quiet.assignment and reader.assignment and await reader.is_settled()):
                await asyncio.gather(quiet.getmany(timeout_ms=50), reader.getmany(timeout_ms=50))
            third.subscribe([topic])
            joining = asyncio.create_task(third.getmany(timeout_ms=60_000))
            while reader.assignment:
                await reader.getmany(timeout_ms=50)
            # The member that does not poll has not rejoined, so the rebalance cannot complete.
            assert not await ConsumeRun(
                reader, ConsumeOptions([], "readers", "classic", None, False, False, False, None, False)
            ).has_reached_ends()
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)

    asyncio.run(go())
