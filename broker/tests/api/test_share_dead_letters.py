"""Dead letters of a share group at a broker: what is written, when, and that each record has one letter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from authorized_broker import ROOT, AuthorizedBroker
from replica_kit import until
from share_kit import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareMember,
    ack_error,
    acquired,
    append,
    leader_of,
    opened_share_broker,
)
from structlog.testing import capture_logs

from penstock.config.modern_groups import COPY_DEAD_LETTERS, DEAD_LETTER_TOPIC
from penstock.config.topic import DEAD_LETTERS_ENABLED, DELIVERY_SCHEDULE
from penstock.replica.leader import Leader
from penstock.share.dead_letter_logs import LetterResult
from penstock.share.dead_letter_records import EXHAUSTED, REJECTED
from penstock.share.dead_letter_writer import MAX_REJECTIONS, LetterLogs, RetryDelays
from penstock.share.dead_letters import MAX_REASON_CHARS, DeadLetterTarget
from penstock.state import keys
from penstock.state.records import GroupSettingsRecord, encode
from penstock.state.store import PutOp
from penstock.wire.errors import ErrorCode as E
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from penstock.wire.record import Record
from penstock.wire.records import iterate_batches, iterate_records

pytestmark = pytest.mark.integration
LETTERS = "dlq.g"


class LossyLogs:
    """Logs of letters whose answers can be lost. Implements `LetterLogs`."""

    def __init__(self, logs: LetterLogs) -> None:
        self.logs = logs
        self.sent: list[bytes] = []
        self.lost: Callable[[], E] = lambda: E.NONE
        """Returns the error that stands for the answer of an append; NONE: the answer arrives."""
        self.appends = True
        """Whether the batches of lost answers are appended."""

    async def append(self, target: DeadLetterTarget, batch: bytes) -> LetterResult:
        self.sent.append(batch)
        lost = self.lost()
        if not lost:
            return await self.logs.append(target, batch)
        if self.appends:
            await self.logs.append(target, batch)
        return LetterResult(lost)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[AuthorizedBroker]:
    async with opened_share_broker(tmp_path) as opened:
        share = opened.services.share
        share.letters = replace(share.letters, logs=LossyLogs(share.letters.logs), retry=RetryDelays(0.02, 0.1))
        yield opened


async def configure(broker: AuthorizedBroker, topic: str = LETTERS, **more: str) -> None:
    settings = {"share.auto.offset.reset": "earliest", DEAD_LETTER_TOPIC: topic, **more}
    record = encode(GroupSettingsRecord(settings=settings))
    await broker.services.store.txn([], [PutOp(keys.group_settings("g"), record)])


async def create(broker: AuthorizedBroker, name: str = LETTERS, partitions: int = 1, **settings: str) -> None:
    given = {DEAD_LETTERS_ENABLED: "true", **{key.replace("_", "."): value for key, value in settings.items()}}
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in given.items()],
    )
    answer = await broker.client(ROOT).ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7)
    assert [each.error_code for each in answer.topics] == [E.NONE], answer


def records_of(role: Leader) -> list[Record]:
    """Return the committed records of a partition."""
    found: list[Record] = []
    while (read := role.read(found[-1].offset + 1 if found else role.log.start_offset, 1 << 20, True)) is not None:
        data = read.file.read_at(read.position, read.size)
        read.release()
        for header, batch in iterate_batches(data):
            found += iterate_records(batch, header, 1 << 20)
    return found


def letters(broker: AuthorizedBroker, topic: str = LETTERS) -> list[Record]:
    return records_of(leader_of(broker, topic)) if topic in broker.view.topics else []


def offsets(broker: AuthorizedBroker, topic: str = LETTERS) -> list[int]:
    """Return the original offsets of the letters."""
    return [int(dict(letter.headers)["__dlq.errors.offset"] or b"") for letter in letters(broker, topic)]


async def reject(member: ShareMember, first: int, last: int) -> None:
    assert ack_error(await member.acknowledge({"t": [(first, last, [REJECT])]})) == E.NONE


async def member_holding(broker: AuthorizedBroker, count: int) -> ShareMember:
    """Append a batch of so many records, and return a member that has acquired all of them."""
    await append(broker, count)
    member = ShareMember(broker)
    await member.fetch("t")
    return member


def pending(broker: AuthorizedBroker) -> int:
    return broker.services.share.pending_letters


async def test_a_rejected_record_becomes_a_letter_with_its_content(broker):
    await configure(broker)
    await create(broker)
    await append(broker, 2)
    originals = records_of(leader_of(broker))
    member = ShareMember(broker)
    assert acquired(await member.fetch("t")) == [(0, 1, 1)]
    await reject(member, 1, 1)
    await until(lambda: letters(broker))
    (letter,) = letters(broker)
    assert (letter.key, letter.value) == (originals[1].key, originals[1].value)
    headers = dict(letter.headers)
    assert headers["__dlq.errors.topic"] == b"t"
    assert headers["__dlq.errors.partition"] == b"0"
    assert headers["__dlq.errors.offset"] == b"1"
    assert headers["__dlq.errors.group"] == b"g"
    assert headers["__dlq.errors.delivery.count"] == b"1"
    assert headers["__dlq.errors.message"] == REJECTED.encode()
    now_ms = broker.services.clock.wall_ms()
    assert 0 < int(headers["penstock.dlq.first.failure.ms"] or b"") <= now_ms
    assert headers["penstock.dlq.first.failure.ms"] == headers["penstock.dlq.last.failure.ms"]
    await until(lambda: not pending(broker))
    assert broker.services.share.stats.dead_letters == 1


async def test_a_record_that_is_released_too_often_becomes_a_letter(broker):
    await configure(broker, **{"share.delivery.count.limit": "2"})
    await create(broker)
    await append(broker, 1)
    member = ShareMember(broker)
    for count in (1, 2):
        assert acquired(await member.fetch("t")) == [(0, 0, count)]
        assert ack_error(await member.acknowledge({"t": [(0, 0, [RELEASE])]})) == E.NONE
    await until(lambda: letters(broker))
    headers = dict(letters(broker)[0].headers)
    assert (headers["__dlq.errors.delivery.count"], headers["__dlq.errors.message"]) == (b"2", EXHAUSTED.encode())


@pytest.mark.parametrize("is_fetch", [False, True])
async def test_a_letter_has_the_reason_that_the_member_gave_last(broker, is_fetch):
    await configure(broker, **{"share.delivery.count.limit": "2"})
    await create(broker)
    member = await member_holding(broker, 2)
    for reason in ("at first", "no stock"):
        acks = {"t": [(0, 0, [RELEASE], -1, reason)]}
        if is_fetch:
            await member.fetch(acks=acks, max_records=0)
        else:
            assert ack_error(await member.acknowledge(acks)) == E.NONE
        if reason == "at first":
            assert acquired(await member.fetch()) == [(0, 0, 2)]
    await member.acknowledge({"t": [(1, 1, [REJECT], -1, "no such customer")]})
    await until(lambda: len(letters(broker)) == 2)
    messages = [dict(letter.headers)["__dlq.errors.message"] for letter in letters(broker)]
    assert messages == [f"{EXHAUSTED}: no stock".encode(), f"{REJECTED}: no such customer".encode()]


async def test_a_reason_that_is_too_long_is_refused(broker):
    member = await member_holding(broker, 1)
    too_long = {"t": [(0, 0, [REJECT], -1, "x" * (MAX_REASON_CHARS + 1))]}
    assert ack_error(await member.acknowledge(too_long)) == E.INVALID_REQUEST
    longest = {"t": [(0, 0, [REJECT], -1, "x" * MAX_REASON_CHARS)]}
    assert ack_error(await member.acknowledge(longest)) == E.NONE


async def test_without_copies_a_letter_has_headers_alone(broker):
    await configure(broker, **{COPY_DEAD_LETTERS: "false"})
    await create(broker)
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    await until(lambda: letters(broker))
    assert (letters(broker)[0].key, letters(broker)[0].value) == (None, None)
    assert offsets(broker) == [0]


async def test_a_letter_that_is_too_large_for_the_topic_has_headers_alone(broker):
    await configure(broker)
    await create(broker, max_message_bytes="700")
    await append(broker, 1, value=bytes(2000))
    member = ShareMember(broker)
    await member.fetch("t")
    await reject(member, 0, 0)
    await until(lambda: letters(broker))
    assert (letters(broker)[0].value, offsets(broker)) == (None, [0])


async def test_many_letters_keep_their_order_in_several_batches(broker):
    await configure(broker, **{"share.partition.max.record.locks": "2000"})
    await create(broker)
    await append(broker, 700, 500)
    member = ShareMember(broker)
    assert acquired(await member.fetch("t", max_records=2000)) == [(0, 1199, 1)]
    await reject(member, 0, 1199)
    await until(lambda: len(letters(broker)) == 1200)
    assert offsets(broker) == list(range(1200))


async def test_letters_go_to_the_partition_of_their_source(broker):
    await configure(broker)
    await create(broker, partitions=3)
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    await until(lambda: offsets(broker) == [0])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        (LETTERS, {}),
        (LETTERS, {DEAD_LETTERS_ENABLED: "false"}),
        ("other", {DEAD_LETTERS_ENABLED: "true"}),
        (LETTERS, {DELIVERY_SCHEDULE: "true"}),
    ],
    ids=["missing", "without the flag", "without the prefix", "that schedules records"],
)
async def test_letters_wait_for_a_topic_that_accepts_them_and_nothing_else_waits(broker, name, settings):
    await configure(broker, name)
    if settings:
        await create(broker, name, **{key.replace(".", "_"): value for key, value in settings.items()})
    await append(broker, 1, 1)
    member = ShareMember(broker)
    assert acquired(await member.fetch("t", max_records=1)) == [(0, 0, 1)]
    await reject(member, 0, 0)
    assert acquired(await member.fetch()) == [(1, 1, 1)]
    assert ack_error(await member.acknowledge({"t": [(1, 1, [ACCEPT])]})) == E.NONE
    assert pending(broker) == 1
    await create(broker, "dlq.right")
    await configure(broker, "dlq.right")
    await until(lambda: offsets(broker, "dlq.right") == [0])
    assert not letters(broker, name)


async def test_the_broker_creates_the_topic_if_it_may(broker):
    broker.services.config.errors_deadletterqueue_auto_create_topics_enable = True
    await configure(broker)
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    await until(lambda: offsets(broker) == [0])
    assert broker.view.topics[LETTERS].config.errors_deadletterqueue_group_enable


async def test_letters_that_wait_are_dropped_when_the_group_gives_up_its_topic(broker):
    await configure(broker)
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    assert pending(broker) == 1
    await configure(broker, "")
    await until(lambda: not pending(broker))
    assert not broker.services.share.stats.dead_letters


@pytest.mark.parametrize("rejected", [E.INVALID_RECORD, E.MESSAGE_TOO_LARGE, E.INVALID_TIMESTAMP])
async def test_letters_that_the_topic_rejects_for_good_hold_up_no_others(broker, rejected):
    await configure(broker)
    await create(broker)
    logs = broker.services.share.letters.logs
    logs.lost = lambda: rejected if len(logs.sent) <= MAX_REJECTIONS else E.NONE
    member = await member_holding(broker, 3)
    with capture_logs() as logged:
        await reject(member, 0, 1)
        await until(lambda: not pending(broker))
    stats = broker.services.share.stats
    assert (stats.dead_letters, stats.dropped_letters) == (0, 2)
    (event,) = [each for each in logged if each["log_level"] == "error"]
    assert (event["first_offset"], event["last_offset"], event["error"]) == (0, 1, rejected.name)
    assert offsets(broker) == [0, 1], "the first attempts were written, and their answers were wrong"
    await reject(member, 2, 2)
    await until(lambda: not pending(broker))
    assert offsets(broker) == [0, 1, 2], "the next letter is no duplicate of those"


async def test_a_topic_that_the_broker_creates_is_not_compacted(broker):
    config = broker.services.config
    config.errors_deadletterqueue_auto_create_topics_enable = True
    config.topic_defaults = replace(config.topic_defaults, cleanup_delete=False, cleanup_compact=True)
    await configure(broker)
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    await until(lambda: offsets(broker) == [0])


@pytest.mark.parametrize("lost", [E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NETWORK_EXCEPTION])
async def test_a_batch_whose_answer_is_lost_is_written_once(broker, lost):
    await configure(broker)
    await create(broker)
    logs = broker.services.share.letters.logs
    logs.lost = lambda: lost if len(logs.sent) < 3 else E.NONE
    member = await member_holding(broker, 3)
    await reject(member, 0, 2)
    await until(lambda: not pending(broker))
    assert len(logs.sent) == 3
    assert offsets(broker) == [0, 1, 2]


async def test_the_next_leader_repeats_the_batch_of_the_last_one_without_a_second_letter(broker):
    await configure(broker)
    await create(broker)
    logs = broker.services.share.letters.logs
    logs.lost = lambda: E.NETWORK_EXCEPTION
    member = await member_holding(broker, 3)
    await reject(member, 0, 1)
    await until(lambda: logs.sent and len(letters(broker)) == 2)
    share = broker.services.share
    share.remove(share.find("g", broker.topic_id("t"), 0))
    logs.lost = lambda: E.NONE
    successor = ShareMember(broker, "m2")
    assert acquired(await successor.fetch("t")) == [(2, 2, 2)]
    await reject(successor, 2, 2)
    await until(lambda: not pending(broker))
    assert offsets(broker) == [0, 1, 2]


async def test_a_new_leader_copies_records_only_once_it_knows_that_they_are_committed(broker):
    await configure(broker)
    await create(broker)
    await append(broker, 2)
    member, role = ShareMember(broker), leader_of(broker)
    await member.fetch("t")
    high_watermark, role.high_watermark = role.high_watermark, 0  # as of a leader whose followers have not fetched yet
    with capture_logs() as events:
        await reject(member, 1, 1)
        await until(lambda: offsets(broker) or any("is not committed yet" in each.get("reason", "") for each in events))
    assert not offsets(broker)
    role.high_watermark = high_watermark
    await until(lambda: offsets(broker) == [1])
    assert [letter.value for letter in letters(broker)] == [records_of(role)[1].value]


async def test_letters_of_a_deleted_topic_are_written_to_the_new_one(broker):
    await configure(broker)
    await create(broker)
    logs = broker.services.share.letters.logs
    logs.lost, logs.appends = lambda: E.NETWORK_EXCEPTION, False
    member = await member_holding(broker, 1)
    await reject(member, 0, 0)
    led = broker.services.share.find("g", broker.topic_id("t"), 0)
    await until(lambda: led.leader.partition.dead_letters.outstanding is not None)
    request = DeleteTopicsRequest(topic_names=[LETTERS], timeout_ms=10_000)
    answer = await broker.client(ROOT).ask(request, DeleteTopicsResponse, 5)
    assert not answer.responses[0].error_code
    logs.lost = lambda: E.NONE
    await create(broker)
    await until(lambda: offsets(broker) == [0])
    await until(lambda: not pending(broker))


async def test_a_partition_that_lost_earlier_letters_gets_the_next_ones(broker):
    await configure(broker)
    await create(broker)
    member = await member_holding(broker, 2)
    await reject(member, 0, 0)
    await until(lambda: offsets(broker) == [0])
    await until(lambda: not pending(broker))
    entries = leader_of(broker, LETTERS).producers.entries
    (entry,) = entries.values()
    entry.packed_batches = b""  # as after an unclean election: the next sequence number is 0
    await reject(member, 1, 1)
    await until(lambda: offsets(broker) == [0, 1])
    assert {each.epoch for each in entries.values()} == {1}
