"""Produces numbered messages and verifies that the acknowledged ones can be read. Runs where brokers' names resolve.

load.py produce SETTINGS TOPIC RATE RUN    produce until standard input ends; print a JSON line at the first
                                           acknowledgement, and at the end one with all acknowledgements
load.py verify SETTINGS TOPIC              read that line from standard input; exit code 1 if a message is lost
load.py once SETTINGS TOPIC                produce and consume one message as soon as possible; print a JSON line
load.py exchange SETTINGS TOPIC GROUP      produce a message and consume it in the group; print a JSON line with the
                                           names of errors, and the addresses of the brokers

SETTINGS are librdkafka's, as JSON. A message is RUN:NUMBER, so that several runs can write to one topic. Requires only
confluent-kafka, for client pods.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 180.0
EXCHANGE_TIMEOUT_MS = 20_000
LONG_PAUSE_S = 0.5
"""Pause of a partition from which the summary lists it with its time (UTC); at most the longest 50."""
FINAL_ERRORS = {
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "_AUTHENTICATION",
    "_SSL", "_MSG_TIMED_OUT", "_TIMED_OUT",
}  # fmt: skip
"""Errors that do not go away by themselves; librdkafka reports others as well."""
Connection = dict[str, Any]
"""Settings of librdkafka."""


def ranges(numbers: set[int]) -> list[list[int]]:
    """Return the first and last number of each gapless sequence."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


class MetadataPoll(threading.Thread):
    """Polls the topic's metadata twice per second and records partitions without a leader."""

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__(daemon=True)
        self._admin = AdminClient(dict(connection))
        self._topic = topic
        self._ended = threading.Event()
        self.polls = 0
        self.leaderless: list[str] = []

    def run(self) -> None:
        while not self._ended.wait(0.5):
            try:
                topic = self._admin.list_topics(self._topic, timeout=5).topics[self._topic]
            except Exception:  # no response: try again
                continue
            self.polls += 1
            for partition in topic.partitions.values():
                if partition.leader < 0:
                    self.leaderless.append(f"{self._topic}-{partition.id} at {time.strftime('%H:%M:%S')}")

    def end(self) -> None:
        self._ended.set()
        self.join(10)


def produce(connection: Connection, topic: str, rate: float, run: str) -> int:
    producer = Producer(
        {
            **connection,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(TIMEOUT_S * 1_000),
            "topic.metadata.refresh.interval.ms": 1_000,
        }
    )
    acknowledged: set[int] = set()
    failures: list[str] = []
    last_ack: dict[int, float] = {}
    longest_pause_s: dict[int, float] = {}
    pauses: list[tuple[float, str]] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(str(error))
            return
        acknowledged.add(int((message.value() or b"").split(b":")[1]))
        if len(acknowledged) == 1:
            print(json.dumps({"begun": True}), flush=True)
        partition, now = message.partition() or 0, time.monotonic()
        pause = now - last_ack.get(partition, now)
        longest_pause_s[partition] = max(longest_pause_s.get(partition, 0.0), pause)
        if pause > LONG_PAUSE_S:
            ended = time.time()
            began_at = time.strftime("%H:%M:%S", time.gmtime(ended - pause)) + f"{(ended - pause) % 1:.2f}"[1:]
            pauses.append((pause, f"{topic}-{partition} for {pause:.2f} s from {began_at}"))
        last_ack[partition] = now

    stopped = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    watch = MetadataPoll(connection, topic)
    watch.start()
    sent, began = 0, time.monotonic()
    while not stopped.is_set():
        due = int((time.monotonic() - began) * rate)
        # If the producer's queue is full, it waits for acknowledgements and never skips a number.
        while sent < due and not stopped.is_set():
            try:
                producer.produce(topic, f"{run}:{sent}".encode(), key=str(sent % 997).encode(), on_delivery=answered)
            except BufferError:
                break
            sent += 1
        producer.poll(0.02)
    left = producer.flush(TIMEOUT_S)
    watch.end()
    summary = {
        "run": run,
        "sent": sent,
        "acknowledged": ranges(acknowledged),
        "count": len(acknowledged),
        "unanswered": left,
        "failures": failures[:20],
        "longest_pause_s": round(max(longest_pause_s.values(), default=0.0), 2),
        "pauses_s": {partition: round(pause, 2) for partition, pause in sorted(longest_pause_s.items())},
        "pauses": [text for _, text in sorted(pauses, reverse=True)[:50]],
        "polls": watch.polls,
        "leaderless": watch.leaderless[:20],
    }
    print(json.dumps(summary), flush=True)
    return 0


def read_all(connection: Connection, topic: str, run: str) -> dict[int, list[int]]:
    """Return the run's numbers by partition, from the first offset to the end offset at the start of this call."""
    consumer = Consumer({**connection, "group.id": "e2e-verify", "enable.auto.commit": False, "check.crcs": True})
    until = time.monotonic() + TIMEOUT_S
    ends: dict[int, int] = {}
    while not ends:
        try:
            partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
            ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in partitions}
        except (KafkaException, KeyError):  # KeyError: the topic has no leader yet
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    read: dict[int, list[int]] = {p: [] for p in ends}
    position = dict.fromkeys(ends, 0)
    while any(position[p] < end for p, end in ends.items()):
        if time.monotonic() > until:
            raise TimeoutError(f"read up to {position}, expected {ends}")
        for message in consumer.consume(10_000, timeout=1.0):
            if message.error():
                continue
            partition = message.partition() or 0
            whose, _, number = (message.value() or b"").decode().partition(":")
            if whose == run:
                read[partition].append(int(number))
            position[partition] = (message.offset() or 0) + 1
    consumer.close()
    return read


def verify(connection: Connection, topic: str) -> int:
    expected: dict[str, Any] = json.load(sys.stdin)
    read = read_all(connection, topic, expected["run"])
    every = [number for numbers in read.values() for number in numbers]
    expected_numbers = {number for first, last in expected["acknowledged"] for number in range(first, last + 1)}
    findings = []
    if lost := expected_numbers - set(every):
        findings.append(f"{len(lost)} acknowledged messages are lost: {ranges(lost)[:10]}")
    if len(every) != len(set(every)):
        findings.append(f"{len(every) - len(set(every))} messages are duplicates")
    disordered = [p for p, numbers in read.items() if numbers != sorted(numbers)]
    if disordered:
        findings.append(f"out of order in partitions {disordered}")
    print(json.dumps({"read": len(every), "acknowledged": len(expected_numbers), "findings": findings}), flush=True)
    return 1 if findings else 0


def once(connection: Connection, topic: str) -> int:
    began = time.monotonic()
    admin = AdminClient({**connection, "log_level": 0})
    until = began + TIMEOUT_S
    while time.monotonic() < until:
        try:
            admin.create_topics([NewTopic(topic, 1)], request_timeout=5)[topic].result(10)
            break
        except Exception as error:
            if "exists" in str(error).lower():
                break
            time.sleep(0.2)
    errors: list[str] = []

    def answered(error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            errors.append(str(error))

    producer = Producer({**connection, "acks": "all", "log_level": 0})
    producer.produce(topic, b"first:0", on_delivery=answered)
    left = producer.flush(TIMEOUT_S)
    took = time.monotonic() - began
    read = read_all(connection, topic, "first") if not errors and not left else {}
    print(json.dumps({"took_s": round(took, 2), "errors": errors, "left": left, "read": read}), flush=True)
    return 0 if any(read.values()) else 1


def exchange(connection: Connection, topic: str, group: str) -> int:
    errors: set[str] = set()

    def on_error(error: KafkaError) -> None:
        errors.add(error.name())

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        del message
        if error is not None:
            errors.add(error.name())

    text, brokers = f"exchange:{time.time_ns()}".encode(), list[str]()
    common = {**connection, "log_level": 0, "error_cb": on_error, "socket.connection.setup.timeout.ms": 5_000}
    producer = Producer({**common, "message.timeout.ms": EXCHANGE_TIMEOUT_MS})
    producer.produce(topic, text, on_delivery=on_delivery)
    producer.flush(TIMEOUT_S)
    if not errors & FINAL_ERRORS:
        brokers = sorted(f"{b.host}:{b.port}" for b in producer.list_topics(topic, timeout=20).brokers.values())
        errors |= consume_one(Consumer({**common, "group.id": group, "auto.offset.reset": "earliest"}), topic, text)
    print(json.dumps({"errors": sorted(errors & FINAL_ERRORS), "all_errors": sorted(errors), "brokers": brokers}))
    return 0


def consume_one(consumer: Consumer, topic: str, text: bytes) -> set[str]:
    """Consume until the message arrives. Return the names of errors."""
    consumer.subscribe([topic])
    until = time.monotonic() + TIMEOUT_S
    errors: set[str] = set()
    while not errors & FINAL_ERRORS:
        message = consumer.poll(1.0)
        if time.monotonic() > until:
            errors.add("_TIMED_OUT")
        if message is None:
            continue
        if (error := message.error()) is not None:
            errors.add(error.name())
        elif message.value() == text:
            consumer.commit(message, asynchronous=False)
            break
    consumer.close()
    return errors


def main(arguments: list[str]) -> int:
    match arguments:
        case ["produce", settings, topic, rate, run]:
            return produce(json.loads(settings), topic, float(rate), run)
        case ["verify", settings, topic]:
            return verify(json.loads(settings), topic)
        case ["once", settings, topic]:
            return once(json.loads(settings), topic)
        case ["exchange", settings, topic, group]:
            return exchange(json.loads(settings), topic, group)
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
