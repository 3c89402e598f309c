"""A load that creates, writes, deletes and recreates topics of a few names.

Journal: `creating`, `created`, `deleting`, `deleted` name, life; `wrote` name, life, count. `life` is the number of the
topic's incarnation, from 1; each record contains it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock_crash.journal import JournalWriter
from penstock_crash.load import FAST_RECONNECT, finishing

RECORDS = 5


class Churn:
    """The loop for one topic name, with its own clients."""

    def __init__(self, name: str, options: dict[str, Any], journal: JournalWriter, end: threading.Event) -> None:
        self.name, self.journal, self.end = name, journal, end
        self.bootstrap = options["bootstrap"]
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap} | FAST_RECONNECT)

    def insist(self, what: str, life: int, done_already: int) -> None:
        """Retry until acknowledged. After a lost answer, an error that the operation is already done counts too."""
        unsure = False
        while True:
            try:
                self.ask(what)
                return
            except KafkaException as refused:
                code = refused.args[0].code()
                if code == done_already:
                    if not unsure:
                        self.journal.write("broken", f"{what} {self.name} {life}: {refused}")
                    return
                unsure = True
                self.journal.write("retry", what, self.name, life, str(refused))

    def ask(self, what: str) -> None:
        if what == "create":
            futures = self.admin.create_topics([NewTopic(self.name, 2, 1)], request_timeout=3, operation_timeout=3)
        else:
            futures = self.admin.delete_topics([self.name], request_timeout=3, operation_timeout=3)
        futures[self.name].result(10)

    def write_some(self, life: int) -> None:
        """Write records of this incarnation with a new producer, so that no metadata outlives the topic."""
        failed: list[str] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                failed.append(str(error))

        config = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "message.timeout.ms": 60_000}
        producer = Producer(config | FAST_RECONNECT)
        for number in range(RECORDS):
            producer.produce(self.name, f"{life}/{number}", partition=number % 2, on_delivery=delivered)
        left = producer.flush(65)
        if left or failed:
            self.journal.write("broken", f"writing to {self.name} in life {life}: {left} left, {failed}")
        self.journal.write("wrote", self.name, life, RECORDS)

    def run(self) -> None:
        life = 0
        while not self.end.is_set():
            life += 1
            self.journal.write("creating", self.name, life)
            self.insist("create", life, KafkaError.TOPIC_ALREADY_EXISTS)
            self.journal.write("created", self.name, life)
            self.write_some(life)
            if self.end.is_set() and life % 2:
                return  # half of the topics are kept
            self.journal.write("deleting", self.name, life)
            self.insist("delete", life, KafkaError.UNKNOWN_TOPIC_OR_PART)
            self.journal.write("deleted", self.name, life)


def main(options: dict[str, Any]) -> None:
    """Run the load. `options`: bootstrap, names, journal."""
    end = finishing()
    journal = JournalWriter(Path(options["journal"]))
    jobs = [threading.Thread(target=Churn(name, options, journal, end).run) for name in options["names"]]
    for job in jobs:
        job.start()
    end.wait()
    for job in jobs:
        job.join()
