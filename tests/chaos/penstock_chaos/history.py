"""Converts the journals of the workloads to the history that the checker reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from penstock_crash.journal import Entry
from penstock_simulation.history import (
    Commit,
    CommittedRead,
    Content,
    History,
    Letter,
    Outcome,
    ScheduledRead,
    ScheduledWrite,
    Seen,
    ShareAck,
    ShareDelivery,
    Write,
)

SOURCE = "orders"
TARGET = "invoices"
WORKERS = "invoicing"
"""Group of the transactional copy from source to target."""


@dataclass(slots=True)
class Output:
    """A record that a transaction made of a record of the source."""

    transaction: str
    value: bytes
    partition: int
    source: tuple[int, int]
    """Partition and offset of the source record."""


@dataclass
class Told:
    """All journal entries of the clients, and the final contents."""

    history: History = field(default_factory=History)
    outputs: list[Output] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    """Transactions whose commit was acknowledged."""
    broken: list[str] = field(default_factory=list)
    """Behaviour that a client reports and that no cluster may show."""
    positions: dict[int, int] = field(default_factory=dict)
    """Final committed offsets of the transactions' group, by partition of the source."""
    _writes: dict[str, Write] = field(default_factory=dict)
    _begun: dict[str, tuple[float, dict[str, int]]] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    def add(self, entries: Iterable[Entry], topic: str, read_committed: bool = False) -> None:
        """Add a journal's entries. `topic` is the topic that its loads write, read or commit offsets of."""
        for kind, *fields in entries:
            match kind:
                case "send":
                    writer, partition, number, value, at_s = fields
                    write = Write(writer, (topic, partition), number, value.encode(), at_s)
                    self._writes[value] = write
                    self.history.writes.append(write)
                case "ack":
                    value, offset, at_s = fields
                    write = self._writes[value]
                    write.outcome, write.offset, write.completed_s = Outcome.OK, offset, at_s
                case "seen":
                    self._add_seen(topic, read_committed, *fields)
                case "read":
                    self._add_seen(SOURCE, True, *fields)
                case "commit":
                    group, partition, offset, begun, ended = fields
                    outcome, at_s = (Outcome.UNKNOWN, inf) if ended is None else (Outcome.OK, ended)
                    self.history.commits.append(Commit(group, (topic, partition), offset, begun, outcome, at_s))
                case "committed":
                    group, partition, offset, begun, ended = fields
                    self.history.committed_reads.append(CommittedRead(group, (SOURCE, partition), offset, begun, ended))
                case "positions":
                    transaction, positions, at_s = fields
                    self._begun[transaction] = at_s, positions
                case "out":
                    self._add_output(*fields)
                case "end":
                    self._end(*fields)
                case "content":
                    its_topic, partition, start, end, records = fields
                    pairs = [(offset, value.encode()) for offset, value in records]
                    self.history.contents.append(Content((its_topic, partition), start, end, pairs))
                case "delivery":
                    member, its_topic, partition, offset, value, count, sent_s, at_s = fields
                    place = its_topic, partition
                    delivery = ShareDelivery(member, place, offset, value.encode(), count, sent_s, at_s)
                    self.history.deliveries.append(delivery)
                case "acknowledged":
                    self._add_acknowledgement(*fields)
                case "letter":
                    at, its_topic, partition, offset, text = fields
                    value = None if text is None else text.encode()
                    position = (at[0], at[1]), at[2]
                    self.history.letters = self.history.letters or []
                    self.history.letters.append(Letter(position, (its_topic, partition), offset, value))
                case "scheduled":
                    self._add_scheduled(topic, *fields)
                case "reminder":
                    reader, partition, offset, key, text, origin, at_s = fields
                    place = topic, partition
                    reminder = ScheduledRead(reader, place, offset, key.encode(), text.encode(), origin, at_s)
                    self.history.scheduled_reads.append(reminder)
                case "delivered":
                    partition, offset, key, text, origin = fields
                    place = topic, partition
                    found = ScheduledRead("the final read", place, offset, key.encode(), text.encode(), origin)
                    self.history.scheduled_contents.setdefault(place, []).append(found)
                case "done":
                    its_topic, partition, offset = fields
                    self.history.queue_ends[its_topic, partition] = offset
                case "broken":
                    self.broken.append(str(fields[0]))

    def _add_seen(
        self,
        topic: str,
        read_committed: bool,
        reader: str,
        session: int,
        group: str,
        at_s: float,
        found: dict[str, list[tuple[int, str]]],
    ) -> None:
        for partition, records in found.items():
            for offset, value in records:
                place = topic, int(partition)
                self.history.seen.append(
                    Seen(reader, session, place, offset, value.encode(), at_s, group, read_committed)
                )

    def _add_scheduled(
        self,
        topic: str,
        partition: int,
        key: str,
        value: str,
        sent_s: float,
        is_cancellation: bool,
        delay_s: float | None,
        due_ms: int | None,
        outcome: str,
        offset: int,
        completed_s: float | None,
    ) -> None:
        """Add a record that was sent to a topic with scheduled records, or a cancellation."""
        place, ended_s = (topic, partition), inf if completed_s is None else completed_s
        self.history.scheduled.append(
            ScheduledWrite(
                place, key.encode(), value.encode(), sent_s, is_cancellation, delay_s, due_ms, Outcome(outcome), offset,
                ended_s,
            )
        )  # fmt: skip

    def _add_acknowledgement(
        self,
        member: str,
        topic: str,
        partition: int,
        offset: int,
        outcome: str,
        count: int,
        is_final: bool,
        is_rejected: bool,
        sent_s: float | None,
        completed_s: float | None,
    ) -> None:
        """Add a member's acknowledgement; without times, it was not sent or not answered."""
        sent_s, completed_s = inf if sent_s is None else sent_s, inf if completed_s is None else completed_s
        place = topic, partition
        self.history.acks.append(
            ShareAck(member, place, offset, is_final, Outcome(outcome), completed_s, count, sent_s, is_rejected)
        )

    def _add_output(self, transaction: str, partition: int, value: str, source: int, offset: int) -> None:
        self.outputs.append(Output(transaction, value.encode(), partition, (source, offset)))
        writer = transaction.rpartition(".")[0]
        number = self._numbers[writer, partition]
        self._numbers[writer, partition] += 1
        write = Write(writer, (TARGET, partition), number, value.encode(), transaction=transaction)
        self._writes[value] = write
        self.history.writes.append(write)

    def _end(self, transaction: str, how: str, at_s: float) -> None:
        if how == "committed":
            self.committed.add(transaction)
        elif how in ("aborted", "left"):
            # The worker's next incarnation, or the coordinator, aborts the uncommitted transaction.
            self.history.aborted.add(transaction)
        begun_s, positions = self._begun.get(transaction, (at_s, {}))
        outcome = {"committed": Outcome.OK, "unknown": Outcome.UNKNOWN}.get(how, Outcome.FAILED)
        completed_s = inf if outcome is Outcome.UNKNOWN else at_s
        for partition, offset in positions.items():
            place = SOURCE, int(partition)
            self.history.commits.append(Commit(WORKERS, place, offset, begun_s, outcome, completed_s))

    def settle(self) -> History:
        """Set the outcomes of transactional records; call it after all entries are added."""
        for write in self.history.writes:
            if write.transaction in self.committed:
                write.outcome = Outcome.OK
        for read in self.history.committed_reads:
            if read.group == WORKERS:
                self.positions[read.partition[1]] = read.offset
        return self.history
