"""Reads topics once from beginning to end with confluent-kafka, queries the committed offsets of groups, and exits.

Options: topics {name: partitions}, isolation, reach {topic: {partition: offset}} (minimum end offsets for the result to
count), groups {group: topic}. Journal: `content` topic, partition, start, end, [[offset, value], ...]; `committed` as
in `group_confluent`, with the topic's name after the group; `over` time, as the last entry.
"""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from penstock_crash.journal import JournalWriter

from penstock_chaos.loads.common import FAST_RECONNECT, by_partition, now, start
from penstock_chaos.loads.login import Login

CALL_S = 10.0


def consumer(options: dict[str, Any], journal: JournalWriter, group: str, **more: Any) -> Consumer:
    config = {"bootstrap.servers": options["bootstrap"], "group.id": group, "enable.auto.commit": False}
    login = Login(options, journal, options["name"])
    return Consumer(config | FAST_RECONNECT | login.librdkafka() | more)


class Reading:
    """One topic, read until each partition's end is at least `reach`."""

    def __init__(self, topic: str, partitions: int, options: dict[str, Any], journal: JournalWriter) -> None:
        self.topic = topic
        self.reach = {p: int(options["reach"].get(topic, {}).get(str(p), 0)) for p in range(partitions)}
        self.records: dict[int, list[tuple[int, str]]] = {p: [] for p in range(partitions)}
        self.ends: dict[int, int] = {}
        eof = {"enable.partition.eof": True, "isolation.level": options["isolation"], "auto.offset.reset": "error"}
        fetch = {"fetch.wait.max.ms": 100, "fetch.error.backoff.ms": 50}
        self.consumer = consumer(options, journal, "unused", **eof, **fetch)

    def read(self, end: threading.Event) -> None:
        self.consumer.assign([TopicPartition(self.topic, p, OFFSET_BEGINNING) for p in self.records])
        while len(self.ends) < len(self.records) and not end.is_set():
            messages = self.consumer.consume(2000, 0.2)
            for partition, records in by_partition(messages).items():
                self.records[partition] += records
            for message in messages:
                error, place, end_offset = message.error(), message.partition(), message.offset()
                if error is None or error.code() != KafkaError._PARTITION_EOF:
                    continue
                assert place is not None
                assert end_offset is not None
                if end_offset >= self.reach[place]:
                    self.ends[place] = end_offset
        self.consumer.close()

    def write_down(self, journal: JournalWriter) -> None:
        for partition, records in self.records.items():
            kept = [(offset, value) for offset, value in records if offset < self.ends[partition]]
            journal.write("content", self.topic, partition, 0, self.ends[partition], kept)


def ask_committed(group: str, topic: str, partitions: int, options: dict[str, Any], journal: JournalWriter) -> None:
    client = consumer(options, journal, group)
    missing = set(range(partitions))
    while missing:
        begun = now()
        try:
            for each in client.committed([TopicPartition(topic, p) for p in sorted(missing)], timeout=CALL_S):
                if each.error is None:
                    missing.discard(each.partition)
                    journal.write("committed", group, each.partition, max(each.offset, -1), begun, now())
        except KafkaException as refused:
            journal.write("note", str(refused), now())
    client.close()


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    for topic, partitions in options["topics"].items():
        reading = Reading(topic, partitions, options, journal)
        reading.read(end)
        if end.is_set():
            return
        reading.write_down(journal)
    for group, topic in options["groups"].items():
        ask_committed(group, topic, options["topics"][topic], options, journal)
    journal.write("over", now())
