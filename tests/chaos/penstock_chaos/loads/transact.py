"""Consume, transform, produce in transactions of confluent-kafka: each record of one topic yields one of another.

The consumed offsets are committed in the same transaction, so the target has exactly one record for each record of the
source, whatever happens. Some transactions are aborted on purpose, and their records are processed again.

Options: topic (the source), target, target_partitions, group, transactional_id, most (records in a transaction),
abort_rate, partitions. Journal: `read` as `seen` in `group_confluent`; `begin` transaction, writer, time; `out`
transaction, partition, value, source partition, source offset; `positions` transaction, {partition: offset}, time;
`end` transaction, committed|aborted|unknown|left, time; `committed` as in `group_confluent`; `broken`; `note`.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import FAST_RECONNECT, body, by_partition, now, start
from penstock_chaos.loads.group_confluent import ask
from penstock_chaos.loads.login import Login

CALL_S = 20.0
LOST_S, LOST_ATTEMPTS = 8.0, 2
"""librdkafka 2.16 loses requests while brokers disappear from the metadata, and waits for them without limit; the
application must give up."""
PAUSE_S = 0.2
TRANSACTION_TIMEOUT_MS = 20_000
sessions = itertools.count(1)


class Over(Exception):
    """This worker cannot continue; the next one fences it and takes over."""


def error_of(raised: KafkaException) -> KafkaError:
    error = raised.args[0]
    assert isinstance(error, KafkaError)
    return error


def insist(call: Callable[[], object], end_after: int = 6) -> None:
    """Call a method of the producer; retry while the error is retriable."""
    for attempt in itertools.count(1):
        try:
            call()
        except KafkaException as raised:
            if not error_of(raised).retriable() or attempt == end_after:
                raise
        else:
            return


class Worker:
    """One worker: a producer with the transactional id, and the single member of the group."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.options, self.journal = name, options, journal
        self.numbers = [0] * options["target_partitions"]
        self.session = 0
        self.logins = [Login(options, journal, f"{options['name']}-{part}") for part in ("producer", "consumer")]
        common = {"bootstrap.servers": options["bootstrap"]} | FAST_RECONNECT
        self.producer = Producer(
            common
            | {
                "transactional.id": options["transactional_id"],
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 5,
                "retry.backoff.ms": 50,
            }
            | self.logins[0].librdkafka()
        )
        self.consumer = Consumer(
            common
            | {
                "group.id": options["group"],
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 1000,
                "fetch.wait.max.ms": 100,
            }
            | self.logins[1].librdkafka()
        )

    def run(self, end: threading.Event, rng: random.Random) -> None:
        insist(lambda: self.producer.init_transactions(CALL_S))
        self.consumer.subscribe([self.options["topic"]], on_assign=self.on_assign)
        for number in itertools.count():
            if end.wait(PAUSE_S) or self.logins[0].has_old_trust:
                return
            for login, client in zip(self.logins, (self.producer, self.consumer), strict=True):
                login.renew(client)
            read = self.consumer.consume(self.options["most"], 0.3)
            messages = [m for m in read if m.error() is None]
            if messages:
                found = by_partition(messages)
                self.journal.write("read", self.name, self.session, self.options["group"], now(), found)
                self.transact(f"{self.name}.{number}", messages, rng.random() < self.options["abort_rate"])

    def on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.session = next(sessions)

    def transact(self, transaction: str, messages: list[Message], on_purpose: bool) -> None:
        self.journal.write("begin", transaction, self.name, now())
        committing = False
        try:
            self.producer.begin_transaction()
            for message in messages:
                self.transform(transaction, message)
            positions = behind(self.options["topic"], messages)
            metadata = self.consumer.consumer_group_metadata()
            self.journal.write("positions", transaction, {each.partition: each.offset for each in positions}, now())
            insist(lambda: self.producer.send_offsets_to_transaction(positions, metadata, LOST_S), LOST_ATTEMPTS)
            if on_purpose:
                self.abort(transaction)
                return
            committing = True
            insist(lambda: self.producer.commit_transaction(LOST_S), LOST_ATTEMPTS)
            self.journal.write("end", transaction, "committed", now())
        except KafkaException as raised:
            error = error_of(raised)
            self.journal.write("note", f"{transaction}: {error}", now())
            if error.txn_requires_abort():
                self.abort(transaction)
                return
            self.journal.write("end", transaction, "unknown" if committing else "left", now())
            raise Over from raised

    def transform(self, transaction: str, message: Message) -> None:
        source, offset = message.partition(), message.offset()
        assert source is not None
        assert offset is not None
        partition = (source + offset) % len(self.numbers)
        value = body(transaction, partition, self.numbers[partition])
        self.numbers[partition] += 1
        self.journal.write("out", transaction, partition, value, source, offset)
        self.producer.produce(self.options["target"], value, partition=partition)
        self.producer.poll(0)

    def abort(self, transaction: str) -> None:
        """Abort, and seek back to the group's committed offsets to process the records again."""
        insist(lambda: self.producer.abort_transaction(LOST_S), LOST_ATTEMPTS)
        self.journal.write("end", transaction, "aborted", now())
        self.session = next(sessions)
        assigned = self.consumer.assignment()
        for each in self.consumer.committed(assigned, timeout=CALL_S) if assigned else ():
            if each.error is not None:
                raise Over
            # OFFSET_BEGINNING if nothing was committed yet
            self.consumer.seek(TopicPartition(each.topic, each.partition, each.offset if each.offset >= 0 else -2))

    def close(self) -> None:
        self.consumer.close()


def behind(topic: str, messages: list[Message]) -> list[TopicPartition]:
    """Return the offsets after these messages."""
    ends: dict[int, int] = {}
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        ends[partition] = max(ends.get(partition, 0), offset + 1)
    return [TopicPartition(topic, partition, offset) for partition, offset in sorted(ends.items())]


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    rng = random.Random(options["seed"])
    asking = threading.Thread(target=ask, args=(options, journal, end))
    asking.start()
    for life in itertools.count(1):
        if end.is_set():
            break
        worker = Worker(f"{options['transactional_id']}.{life}", options, journal)
        try:
            worker.run(end, rng)
        except Over:
            pass
        except KafkaException as raised:
            journal.write("note", f"life {life}: {error_of(raised)}", now())
        finally:
            worker.close()
        end.wait(0.2)
    asking.join()
