"""Translates committed offsets of groups to offsets in the target cluster of a mirror. Called by `mirror`.

After each batch the mirror records an offset point: the batch's end offset in the source partition, and the log end
offset in the target partition. Every record from the source offset on lies at or after the target offset. Between two
points lie the records of one batch, so a target offset is found by counting back from the later point: a record n
before the batch's end in the source is at most n before its end in the target, plus one for the transaction marker.
Where source offsets are missing (compaction, markers), or a point in between was dropped, the result is earlier than
the exact offset: the group reads records twice, and loses none. Only the mirror may write to the target topics.

The points are stored in the target cluster, in the metadata of offsets that the job's own group has committed: the last
few dozen of each partition. That covers groups that lag by hours, without a file that can be lost.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.client import ClientError, ClusterConnections, GroupAdminClient, OffsetAndMetadata, TopicPartition
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock_spark.link.ports import BrokerLink

MARKER_TIMEOUT_S = 60.0
"""Maximum time for a transaction marker to appear: brokers write it after they have acknowledged the commit."""
POLL_INTERVAL_S = 0.05
MAX_POINTS = 64
MAX_METADATA_BYTES = 3_500
"""Brokers accept 4,096 bytes of offset metadata."""
RECENT_POINTS = 16
"""Number of latest points that are all kept; older ones are thinned out."""


class OffsetPoint(NamedTuple):
    """Offsets of one position in both clusters. Stored as a JSON array in this order."""

    source_offset: int
    target_offset: int
    is_one_batch: bool = True
    """Whether one batch lies between this point and the one before. If not, markers and aborted attempts lie between,
    and offsets cannot be counted back from here."""


def add(points: Sequence[OffsetPoint], point: OffsetPoint) -> list[OffsetPoint]:
    """Return the points with another one. If there is one for the same source offset, it is kept: both are valid."""
    kept = [p for p in points if p.source_offset < point.source_offset]
    if len(kept) < len(points) and points[len(kept)].source_offset == point.source_offset:
        return list(points)
    found = [*kept, point]
    return thin_out(found) if len(found) > MAX_POINTS else found


def thin_out(points: Sequence[OffsetPoint]) -> list[OffsetPoint]:
    """Drop every other one of the older points."""
    old, new = points[:-RECENT_POINTS], points[-RECENT_POINTS:]
    behind = [new[0]._replace(is_one_batch=False), *new[1:]] if len(old) % 2 == 0 else list(new)
    return [*old[:1], *(p._replace(is_one_batch=False) for p in old[2::2]), *behind]


def translate(points: Sequence[OffsetPoint], offset: int) -> int | None:
    """Return the target offset for a committed source offset; None if it is not known to lie after the first point.

    Exact if no source offset is missing between the points around it, else earlier, never later.
    """
    index = bisect.bisect_right(points, offset, key=lambda p: p.source_offset)
    before = points[index - 1] if index else None
    if before is not None and before.source_offset == offset:
        return before.target_offset
    if index == len(points):
        # The group has read further than the mirror: it has seen all records in the target.
        return before.target_offset if before is not None else None
    behind, least = points[index], before.target_offset if before is not None else 0
    if not behind.is_one_batch:
        return least
    return max(behind.target_offset - 1 - (behind.source_offset - offset), least)


def encode(points: Sequence[OffsetPoint]) -> str:
    """Encode points as offset metadata; drop the oldest ones if they do not fit."""
    left = list(points)
    while len(text := msgspec.json.encode(left).decode()) > MAX_METADATA_BYTES:
        left = [left[1]._replace(is_one_batch=False), *left[2:]]
    return text


def decode(note: str) -> list[OffsetPoint]:
    """Decode offset metadata; invalid metadata has no points."""
    try:
        found = msgspec.json.decode(note, type=list[OffsetPoint])
    except msgspec.DecodeError:
        return []
    return sorted(found)


class OffsetPoints:
    """The offset points of each partition, stored in the target cluster."""

    def __init__(self, target: BrokerLink, group: str) -> None:
        self._target = target
        self._group = group
        self._known: dict[TopicPartition, list[OffsetPoint]] = {}

    def load(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, list[OffsetPoint]]:
        """Return the points of partitions; read from the brokers once."""
        requested = list(partitions)
        unknown = [tp for tp in requested if tp not in self._known]
        if unknown:
            found = self._target.committed(self._group, unknown)
            for tp in unknown:
                self._known[tp] = decode(found[tp][1]) if tp in found else []
        return {tp: self._known[tp] for tp in requested}

    def add(self, new: Mapping[TopicPartition, OffsetPoint]) -> None:
        """Add points and commit them."""
        known = self.load(new)
        changed = {tp: add(known[tp], point) for tp, point in new.items()}
        changed = {tp: points for tp, points in changed.items() if points != known[tp]}
        if not changed:
            return
        notes = {tp: OffsetAndMetadata(points[-1].target_offset, encode(points)) for tp, points in changed.items()}
        alter(self._target, self._group, notes)
        self._known.update(changed)


def alter(link: BrokerLink, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Commit offsets for a group without members."""

    async def work(cluster: ClusterConnections) -> None:
        await GroupAdminClient(cluster).alter_offsets(group, offsets)

    link.run(work)


def stable_ends(
    link: BrokerLink, partitions: Iterable[TopicPartition], clock: Callable[[], float] = time.monotonic
) -> Mapping[TopicPartition, int]:
    """Return the log end offsets once no transaction is open. Raises `Unavailable` if one stays open."""
    targets, deadline = dict.fromkeys(partitions, LATEST), clock() + MARKER_TIMEOUT_S
    while True:
        written = link.offsets(targets, READ_UNCOMMITTED)
        decided = link.offsets(targets, READ_COMMITTED)
        undecided = sorted(tp for tp, end in written.items() if decided.get(tp, end) < end)
        if not undecided:
            return written
        if clock() > deadline:
            topic, partition = undecided[0]
            raise Unavailable(
                f"{topic}-{partition}: a transaction has been open for {MARKER_TIMEOUT_S:.0f} s; only the "
                "mirror may write to the mirrored topic"
            )
        time.sleep(POLL_INTERVAL_S)


class Translator:
    """Translates the committed offsets of groups after each batch."""

    def __init__(self, source: BrokerLink, target: BrokerLink, points: OffsetPoints, prefix: str) -> None:
        self._source = source
        self._target = target
        self._points = points
        self._prefix = prefix

    def translate_groups(self, ends: Mapping[TopicPartition, int], groups: Sequence[str]) -> list[str]:
        """Translate groups after a batch that ends at `ends`, before the next one starts.

        Returns the groups that could not be moved, because they have members in the target cluster. Raises
        `Unavailable`: the batch must run again, so that each batch has its points.
        """
        targets = {tp: TopicPartition(self._prefix + tp.topic, tp.partition) for tp in ends}
        logs = stable_ends(self._target, targets.values())
        self._points.add(
            {targets[tp]: OffsetPoint(end, logs[targets[tp]]) for tp, end in ends.items() if targets[tp] in logs}
        )
        return [group for group in groups if not self._move(group, targets)]

    def _move(self, group: str, targets: Mapping[TopicPartition, TopicPartition]) -> bool:
        committed = self._source.committed(group, list(targets))
        if not committed:
            return True
        points = self._points.load(targets[tp] for tp in committed)
        present = self._target.committed(group, [targets[tp] for tp in committed])
        moved = {}
        for tp, (offset, note) in committed.items():
            to = translate(points[targets[tp]], offset)
            # Never move back: the group may have committed later offsets in the target since.
            if to is not None and (targets[tp] not in present or present[targets[tp]][0] < to):
                moved[targets[tp]] = OffsetAndMetadata(to, note)
        if not moved:
            return True
        try:
            alter(self._target, group, moved)
        except ClientError:
            # The group has members there, or a broker is unavailable: the next batch tries again.
            return False
        return True
