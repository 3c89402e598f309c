"""Offsets of groups from one cluster as offsets in another, to which a job mirrors. Called by `mirror`.

After each batch it is known where the batch ended here, and where the log ends there: a point, (offset here, offset
there). Every record from the first on lies at or behind the second there. Between two points the records of one batch
lie together, so that from the later point one can count back: a record that is n before the batch's end here is at most
n before its end there, and one more for the transaction's marker. Where offsets lack here (compaction, markers), or a
point between was given up for room, this says an earlier place than the right one: records come twice to that group,
none is lost. Others must not write to the topics there.

Points are kept there, in the notes of offsets that a group of the job's own has committed, the last few dozen of each
partition: far enough back for groups that lag by hours, and no file to lose.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.client import ClientError, OffsetAndMetadata, TopicPartition
from penstock.client.admin.groups import GroupAdminClient
from penstock.client.cluster import ClusterConnections
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock_spark.link.ports import Link

UNDECIDED_S = 60.0
"""For so long a batch that came through may be undecided there: brokers write its marker after they have said so."""
LOOK_S = 0.05
MAX_POINTS = 64
MAX_NOTE_BYTES = 3_500
"""Brokers take notes of 4,096 bytes."""
RECENT = 16
"""This many points are kept as they are; older ones become sparser."""


class Point(NamedTuple):
    here: int
    there: int
    is_one_batch: bool = True
    """Whether what lies between this and the point before is one batch: else nothing can be counted back from here, as
    markers and aborted attempts lie between."""


def add(points: Sequence[Point], point: Point) -> list[Point]:
    """With another point, which ends a batch; one for the same offset here is kept: the earlier is as right."""
    kept = [p for p in points if p.here < point.here]
    if len(kept) < len(points) and points[len(kept)].here == point.here:
        return list(points)
    found = [*kept, point]
    return thinned(found) if len(found) > MAX_POINTS else found


def thinned(points: Sequence[Point]) -> list[Point]:
    """Every other one of the older points goes."""
    old, new = points[:-RECENT], points[-RECENT:]
    behind = [new[0]._replace(is_one_batch=False), *new[1:]] if len(old) % 2 == 0 else list(new)
    return [*old[:1], *(p._replace(is_one_batch=False) for p in old[2::2]), *behind]


def translate(points: Sequence[Point], offset: int) -> int | None:
    """Where a group that has committed `offset` here goes on there; None before the first point is known to be passed.

    Exact where no offset lacks here between the points around it, else earlier, never later.
    """
    index = bisect.bisect_right(points, offset, key=lambda p: p.here)
    before = points[index - 1] if index else None
    if before is not None and before.here == offset:
        return before.there
    if index == len(points):
        # Read further here than was mirrored: what is there has all been seen.
        return before.there if before is not None else None
    behind, least = points[index], before.there if before is not None else 0
    if not behind.is_one_batch:
        return least
    return max(behind.there - 1 - (behind.here - offset), least)


def encode(points: Sequence[Point]) -> str:
    """As a note; the oldest points go where they are too many for one."""
    left = list(points)
    while len(text := msgspec.json.encode(left).decode()) > MAX_NOTE_BYTES:
        left = [left[1]._replace(is_one_batch=False), *left[2:]]
    return text


def decode(note: str) -> list[Point]:
    try:
        found = msgspec.json.decode(note, type=list[Point])
    except msgspec.DecodeError:
        return []
    return sorted(found)


class Points:
    """The points of each partition there, kept by the brokers there."""

    def __init__(self, target: Link, group: str) -> None:
        self._target = target
        self._group = group
        self._known: dict[TopicPartition, list[Point]] = {}

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, list[Point]]:
        wanted = list(partitions)
        unknown = [tp for tp in wanted if tp not in self._known]
        if unknown:
            found = self._target.committed(self._group, unknown)
            for tp in unknown:
                self._known[tp] = decode(found[tp][1]) if tp in found else []
        return {tp: self._known[tp] for tp in wanted}

    def add(self, new: Mapping[TopicPartition, Point]) -> None:
        known = self.of(new)
        changed = {tp: add(known[tp], point) for tp, point in new.items()}
        changed = {tp: points for tp, points in changed.items() if points != known[tp]}
        if not changed:
            return
        notes = {tp: OffsetAndMetadata(points[-1].there, encode(points)) for tp, points in changed.items()}
        alter(self._target, self._group, notes)
        self._known.update(changed)


def alter(link: Link, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    async def work(cluster: ClusterConnections) -> None:
        await GroupAdminClient(cluster).alter_offsets(group, offsets)

    link.run(work)


def decided_ends(
    link: Link, partitions: Iterable[TopicPartition], clock: Callable[[], float] = time.monotonic
) -> Mapping[TopicPartition, int]:
    """Where logs end, when all transactions in them are decided. Raises `Unavailable` where one stays undecided."""
    wanted, deadline = dict.fromkeys(partitions, LATEST), clock() + UNDECIDED_S
    while True:
        written = link.offsets(wanted, READ_UNCOMMITTED)
        decided = link.offsets(wanted, READ_COMMITTED)
        undecided = sorted(tp for tp, end in written.items() if decided.get(tp, end) < end)
        if not undecided:
            return written
        if clock() > deadline:
            topic, partition = undecided[0]
            raise Unavailable(
                f"{topic}-{partition}: a transaction has been undecided for {UNDECIDED_S:.0f} s: does somebody else "
                "write to the mirrored topic?"
            )
        time.sleep(LOOK_S)


class Translator:
    """Brings groups up to date after each batch."""

    def __init__(self, source: Link, target: Link, points: Points, prefix: str) -> None:
        self._source = source
        self._target = target
        self._points = points
        self._prefix = prefix

    def batch_ended(self, ends: Mapping[TopicPartition, int], groups: Sequence[str]) -> list[str]:
        """A batch came through that ends at `ends` here, and no other has begun. Returns the groups that could not be
        moved because they have members there. Raises `Unavailable`: the batch is to be run again, so that each has its
        points."""
        there = {tp: TopicPartition(self._prefix + tp.topic, tp.partition) for tp in ends}
        logs = decided_ends(self._target, there.values())
        self._points.add({there[tp]: Point(end, logs[there[tp]]) for tp, end in ends.items() if there[tp] in logs})
        return [group for group in groups if not self._move(group, there)]

    def _move(self, group: str, there: Mapping[TopicPartition, TopicPartition]) -> bool:
        committed = self._source.committed(group, list(there))
        if not committed:
            return True
        points = self._points.of(there[tp] for tp in committed)
        present = self._target.committed(group, [there[tp] for tp in committed])
        moved = {}
        for tp, (offset, note) in committed.items():
            to = translate(points[there[tp]], offset)
            # Never back: somebody may have gone on there since.
            if to is not None and (there[tp] not in present or present[there[tp]][0] < to):
                moved[there[tp]] = OffsetAndMetadata(to, note)
        if not moved:
            return True
        try:
            alter(self._target, group, moved)
        except ClientError:
            # It has members there, or a broker is away: the next batch tries again.
            return False
        return True
