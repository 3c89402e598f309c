"""`penstock topic` against a broker: output and exit codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


def test_a_topic_is_created_described_altered_and_deleted(cli: Cli, name: str) -> None:
    made = cli("topic", "create", name, "--partitions", "3", "--config", "retention.ms=60000")
    assert (made.code, made.out) == (0, f"created topic {name} with 3 partitions\n")
    (described,) = cli("topic", "describe", name, "--output", "json").json
    assert (described["name"], described["configs"]["retention.ms"]) == (name, "60000")
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert {(p["start_offset"], p["end_offset"]) for p in described["partitions"]} == {(0, 0)}

    assert cli("topic", "alter", name, "--unset", "retention.ms", "--partitions", "5").code == 0
    (described,) = cli("topic", "describe", name, "--output", "json").json
    assert described["configs"].get("retention.ms") != "60000"
    assert len(described["partitions"]) == 5

    assert cli("topic", "delete", name, "--yes").out == f"deleted topic {name}\n"
    assert name not in {topic["name"] for topic in cli("topic", "list", "--output", "json").json}


def test_a_delayed_topic_is_described_with_the_records_that_wait(cli: Cli, name: str) -> None:
    assert cli("topic", "create", name, "--partitions", "1", "--config", "delivery.delay.ms=3600000").code == 0
    assert cli("produce", name, stdin=b"one\ntwo\n").code == 0
    (described,) = cli("topic", "describe", name, "--output", "json").json
    (partition,) = described["partitions"]
    assert (partition["end_offset"], partition["undelivered"]) == (0, 2)
    assert partition["next_due_ms"] > 3_600_000
    assert described["configs"]["delivery.delay.ms"] == "3600000"
    lines = [line.split() for line in cli("topic", "describe", name).lines]
    assert lines[1] == ["PARTITION", "LEADER", "REPLICAS", "ISR", "START", "END", "UNDELIVERED", "SIZE"]
    assert lines[2][4:7] == ["0", "0", "2"]
    refused = cli("topic", "alter", name, "--config", "cleanup.policy=compact")
    assert refused.code != 0
    assert "set cleanup.policy=delete" in refused.err


def test_a_topic_with_scheduled_records_is_described_with_their_number_and_the_next_time(cli: Cli, name: str) -> None:
    assert cli("topic", "create", name, "--partitions", "1", "--config", "delivery.schedule.enable=true").code == 0
    assert cli("produce", name, "--deliver-after", "2h", stdin=b"one\ntwo\n").code == 0
    assert cli("produce", name, "--deliver-at", "2020-01-31T10:00:00Z", stdin=b"past\n").code == 0
    (described,) = cli("topic", "describe", name, "--output", "json").json
    (partition,) = described["partitions"]
    assert partition["undelivered"] == 2
    assert partition["next_due_ms"] > 7_200_000
    assert "next delivery at 20" in cli("topic", "describe", name).out
    consumed = cli("consume", name, "--from-beginning", "--count", "1")
    assert consumed.lines == ["past"]
    refused = cli("produce", name, "--deliver-after", "31d", stdin=b"x\n")
    assert refused.code != 0
    assert "up to 30 days ahead" in refused.err


def test_the_list_is_a_table_with_plain_columns_where_there_is_no_terminal(cli: Cli, topic: str) -> None:
    lines = cli("topic", "list").lines
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "REPLICAS"]
    assert [topic, "2", "1"] in [line.split() for line in lines]
    assert all("\x1b" not in line for line in lines)


def test_describing_as_text_shows_partitions_and_settings(cli: Cli, topic: str) -> None:
    cli("topic", "alter", topic, "--config", "segment.ms=70000")
    out = cli("topic", "describe", topic).out
    assert f"topic {topic}" in out
    assert "PARTITION" in out
    assert ["segment.ms", "70000"] in [line.split() for line in out.splitlines()]


def test_a_topic_that_is_there_is_refused_with_code_4_unless_that_is_fine(cli: Cli, topic: str) -> None:
    again = cli("topic", "create", topic)
    assert again.code == 4
    assert f'topic "{topic}" already exists' in again.err
    assert cli("topic", "create", topic, "--if-not-exists").code == 0


def test_a_topic_that_is_not_there_ends_with_code_3(cli: Cli, name: str) -> None:
    for command in (["describe", name], ["alter", name, "--partitions", "9"], ["delete", name, "--yes"]):
        outcome = cli("topic", *command)
        assert (outcome.code, name in outcome.err) == (3, True), outcome


def test_deleting_without_a_terminal_needs_a_yes(cli: Cli, topic: str) -> None:
    outcome = cli("topic", "delete", topic)
    assert outcome.code == 4
    assert "--yes" in outcome.err
    assert cli("topic", "describe", topic).code == 0


def test_a_dry_run_creates_nothing(cli: Cli, name: str) -> None:
    assert cli("topic", "create", name, "--dry-run").out.startswith(f"could be created topic {name}")
    assert cli("topic", "describe", name).code == 3


def test_a_setting_that_does_not_exist_is_named(cli: Cli, topic: str) -> None:
    outcome = cli("topic", "alter", topic, "--config", "retention.hours=5")
    assert outcome.code == 1
    assert "retention.hours" in outcome.err
    assert "Traceback" not in outcome.err


def test_wrong_usage_ends_with_code_2(cli: Cli, topic: str) -> None:
    for command in (["alter", topic], ["create", "x", "--partitions", "0"], ["create"], ["frobnicate"]):
        assert cli("topic", *command).code == 2


def test_more_in_sync_replicas_than_there_are_replicas_are_taken_with_a_note(cli: Cli, name: str) -> None:
    made = cli("topic", "create", name, "--config", "min.insync.replicas=3", "--replication-factor", "1")
    note = f'note: min.insync.replicas "3" of topic "{name}" is above its replication factor "1"'
    assert (made.code, note in made.err) == (0, True), made
    altered = cli("topic", "alter", name, "--config", "min.insync.replicas=2")
    assert (altered.code, note.replace('"3"', '"2"') in altered.err) == (0, True), altered
    assert "note" not in cli("topic", "alter", name, "--config", "min.insync.replicas=1").err
    (described,) = cli("topic", "describe", name, "--output", "json").json
    assert described["configs"]["min.insync.replicas"] == "1"


def test_settings_of_kafka_are_taken_and_internal_topics_refused(cli: Cli, name: str) -> None:
    made = cli("topic", "create", name, "--config", "remote.storage.enable=false", "--config", "cleanup.policy=")
    assert made.code == 0, made
    (described,) = cli("topic", "describe", name, "--output", "json").json
    assert described["configs"] == {"remote.storage.enable": "false", "cleanup.policy": ""}
    refused = cli("topic", "create", "__consumer_offsets")
    assert refused.code == 1, refused
    assert "__consumer_offsets is prohibited" in refused.err
    unknown = cli("topic", "alter", name, "--config", "x=1")
    assert "Unknown topic config name: x" in unknown.err
