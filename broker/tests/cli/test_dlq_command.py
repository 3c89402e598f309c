"""`penstock dlq` against a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, NewTopic, Producer

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]
FIRST_MS, LATER_MS = 1_000_000, 2_000_000


@pytest.fixture
def letters(bootstrap: str, topic: str) -> str:
    """Return a topic with three letters of `topic`; the last one is of another group and time."""
    name = f"dlq.{topic}"

    async def write() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topics([NewTopic(name, 1, configs={"errors.deadletterqueue.group.enable": "true"})])
        async with Producer(bootstrap) as producer:
            for number, (group, at_ms) in enumerate([("a", FIRST_MS), ("a", FIRST_MS), ("b", LATER_MS)]):
                failure = {
                    "topic": topic, "partition": "1", "offset": str(40 + number), "group": group,
                    "delivery.count": "5", "message": f"reason {group}",
                }  # fmt: skip
                headers = [("n", b"%d" % number), *((f"__dlq.errors.{k}", v.encode()) for k, v in failure.items())]
                await producer.send(name, b"v%d" % number, key=b"k", headers=headers, timestamp_ms=at_ms)

    asyncio.run(write())
    return name


def test_topics_are_listed_with_their_depth_and_oldest_letter(cli: Cli, topic: str, letters: str) -> None:
    listed = {entry["topic"]: entry for entry in cli("dlq", "list", "--output", "json").json}
    assert listed[letters] == {"topic": letters, "partitions": 1, "letters": 3, "oldest_ms": FIRST_MS}
    assert topic not in listed
    assert letters in cli("dlq", "list").out


def test_letters_are_shown_with_their_origin_and_reason(cli: Cli, topic: str, letters: str) -> None:
    shown = cli("dlq", "show", letters, "--group", "b", "--output", "json")
    (line,) = shown.lines
    found = json.loads(line)
    assert (found["value"], found["key"], found["headers"]) == ("v2", "k", {"n": "2"})
    assert found["failure"] == {
        "topic": topic, "partition": 1, "offset": 42, "group": "b", "delivery_count": 5, "reason": "reason b",
        "first_failure_ms": -1, "last_failure_ms": -1,
    }  # fmt: skip
    text = cli("dlq", "show", letters, "--count", "1").out
    for part in (f"{topic}-1 offset 40", "group     a  deliveries 5", "reason    reason a", "value     v0"):
        assert part in text
    assert cli("dlq", "show", letters, "--since", "1970-01-02T00:00:00Z").out == ""


def test_a_replay_says_what_it_did_and_leaves_the_rest_for_later(cli: Cli, topic: str, letters: str) -> None:
    assert cli("dlq", "replay", letters, "--dry-run").out.startswith("would replay 3 letters")
    some = cli("dlq", "replay", letters, "--reason", "reason a", "--rate", "100", "--output", "json").json
    assert some == {
        "replayed": 2, "kept": 1, "empty": 0, "progress_group": f"penstock-dlq-replay-{letters}", "dry_run": False,
    }  # fmt: skip
    assert cli("dlq", "replay", letters).out == "replayed 1 letter; left out by the filters: 0\n"
    assert cli("dlq", "replay", letters).out == "replayed 0 letters; left out by the filters: 0\n"


def test_letters_are_purged_after_a_confirmation(cli: Cli, letters: str) -> None:
    refused = cli("dlq", "purge", letters)
    assert (refused.code, "--yes" in refused.err) == (4, True)
    old = cli("dlq", "purge", letters, "--before", "1970-01-01T00:20:00Z", "--yes")
    assert (old.code, old.out) == (0, f"deleted 2 letters of topic {letters}\n")
    (left,) = (entry for entry in cli("dlq", "list", "--output", "json").json if entry["topic"] == letters)
    assert (left["letters"], left["oldest_ms"]) == (1, LATER_MS)
    assert cli("dlq", "purge", letters, "--yes").out == f"deleted 1 letter of topic {letters}\n"
    assert cli("dlq", "purge", letters, "--yes").out == f"topic {letters} has no such letters\n"


@pytest.mark.parametrize("command", ["show", "replay", "purge"])
def test_a_missing_topic_ends_with_code_3(cli: Cli, name: str, command: str) -> None:
    outcome = cli("dlq", command, name)
    assert (outcome.code, name in outcome.err) == (3, True)


def test_a_time_that_is_none_is_wrong_usage(cli: Cli, letters: str) -> None:
    assert cli("dlq", "show", letters, "--since", "yesterday").code == 2
