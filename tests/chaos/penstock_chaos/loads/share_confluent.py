"""A confluent-kafka member of a share group, which acknowledges each record on its own.

Options: bootstrap, name, seed, group, topics. Journal: as in `share_members`, when it happens. The client does not tell
when it requested a record: the time is the earliest at which a request that is answered now may have been sent.
"""

from __future__ import annotations

import random
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaError, KafkaException, Message, ShareConsumer, TopicPartition
from penstock_crash.journal import JournalWriter
from penstock_simulation.history import Outcome

from penstock_chaos.loads.common import FAST_RECONNECT, now, start

POLL_S = 0.3
COMMIT_S = 15.0
LONGEST_REQUEST_S = 11.0
"""More than `socket.timeout.ms`."""
CHOICES = {AcknowledgeType.ACCEPT: 0.8, AcknowledgeType.RELEASE: 0.1, AcknowledgeType.REJECT: 0.1}


class Member:
    """One member of the group."""

    def __init__(self, options: dict[str, Any], journal: JournalWriter) -> None:
        self.name, self.journal = options["name"], journal
        self.rng = random.Random(options["seed"])
        config = {"bootstrap.servers": options["bootstrap"], "group.id": options["group"]}
        self.consumer = ShareConsumer(config | FAST_RECONNECT | {"share.acknowledgement.mode": "explicit"})
        self.consumer.subscribe(list(options["topics"]))

    def work_once(self) -> None:
        """Take some records, and acknowledge each one."""
        try:
            messages = [message for message in self.consumer.poll(POLL_S) if message.error() is None]
        except KafkaException as error:
            self.journal.write("note", repr(error), now())
            return
        choices = self.rng.choices(list(CHOICES), list(CHOICES.values()), k=len(messages))
        for message, choice in zip(messages, choices, strict=True):
            self.write_delivery(message)
            self.consumer.acknowledge(message, choice)
        sent_s = now()
        try:
            results = self.consumer.commit_sync(COMMIT_S) if messages else {}
        except KafkaException as error:
            self.journal.write("note", repr(error), now())
            results = {}
        for message, choice in zip(messages, choices, strict=True):
            place = TopicPartition(str(message.topic()), int(message.partition() or 0))
            self.write_acknowledgement(message, choice, outcome_of(results, place), sent_s)

    def write_delivery(self, message: Message) -> None:
        times = now() - LONGEST_REQUEST_S, now()
        self.journal.write("delivery", self.name, *place_of(message), text_of(message), count_of(message), *times)

    def write_acknowledgement(self, message: Message, choice: AcknowledgeType, outcome: Outcome, sent_s: float) -> None:
        is_final, is_rejected = choice != AcknowledgeType.RELEASE, choice == AcknowledgeType.REJECT
        completed_s = now() if outcome is Outcome.OK else None
        how = outcome.value, count_of(message), is_final, is_rejected, sent_s, completed_s
        self.journal.write("acknowledged", self.name, *place_of(message), *how)
        if outcome is Outcome.OK:
            self.journal.write("worked", now())


def outcome_of(results: dict[TopicPartition, KafkaException | None], place: TopicPartition) -> Outcome:
    """Return the outcome of the acknowledgements of a partition."""
    if place not in results:
        return Outcome.UNKNOWN
    error = results[place]
    if error is None:
        return Outcome.OK
    return Outcome.FAILED if error.args[0].code() == KafkaError.INVALID_RECORD_STATE else Outcome.UNKNOWN


def place_of(message: Message) -> tuple[str | None, int | None, int | None]:
    return message.topic(), message.partition(), message.offset()


def text_of(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes), f"a record of {message.topic()} has the value {value!r}"
    return value.decode()


def count_of(message: Message) -> int:
    return int(message.delivery_count() or 1)


def main(options: dict[str, Any]) -> None:
    end, journal = start(options)
    member = Member(options, journal)
    while not end.is_set():
        member.work_once()
    member.consumer.close()
