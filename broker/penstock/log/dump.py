"""Shows and checks the files of a data directory offline, for `penstock log dump`.

One line for each batch, record, index entry and checkpoint, as text or as JSON. What is wrong is a line too, and makes
the exit code 1. Reads only; a broker may be running, whose newest bytes can then look torn.
"""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

import msgspec

from penstock.log import checkpoint as checkpoints
from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY
from penstock.log.meta import FILE_NAME as META_NAME
from penstock.log.meta import WrongDirectory, read_meta
from penstock.log.opening import parse_partition
from penstock.log.repair import damage
from penstock.log.scan import BadBatch, ScannedBatch, verify, walk
from penstock.log.segment import INDEX, LOG, TIME_INDEX, parse_base_offset
from penstock.runtime.disk import OsFiles
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 256 << 20
MAX_SHOWN_BYTES = 200
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KNOWN_SUFFIXES = (LOG, INDEX, TIME_INDEX)
KNOWN_NAMES = (checkpoints.FILE_NAME, checkpoints.TABLE_NAME, META_NAME)


def dump(paths: Sequence[str], *, verify: bool, records: bool, json: bool, out: TextIO) -> int:
    """Shows files, or all that a directory holds; returns the exit code: 1 where something is wrong, else 0."""
    dumper = Dumper(verify, records, json, out)
    for path in paths:
        dumper.path(path)
    return 1 if dumper.problems else 0


class Dumper:
    """What to show, and what was found wrong so far."""

    def __init__(self, verify: bool, records: bool, json: bool, out: TextIO) -> None:
        self.verify, self.records, self.json, self.out = verify, records, json, out
        self.files = OsFiles()
        self.problems = 0

    def show(self, kind: str, **fields: Any) -> None:
        if self.json:
            self.out.write(json_module.dumps({"kind": kind, **fields}) + "\n")
        else:
            self.out.write(kind + "".join(f" {name}={value}" for name, value in fields.items()) + "\n")

    def wrong(self, path: str, reason: str) -> None:
        self.problems += 1
        self.show("problem", file=path, reason=reason)

    def path(self, path: str) -> None:
        if not os.path.isdir(path):
            self.file(path)
            return
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if name in KNOWN_NAMES or parse_base_offset(name) is not None:
                self.file(inner)
            elif parse_partition(name) is not None and os.path.isdir(inner):
                self.path(inner)

    def file(self, path: str) -> None:
        name = os.path.basename(path)
        shown = {
            checkpoints.FILE_NAME: self.checkpoint,
            checkpoints.TABLE_NAME: self.table,
            META_NAME: self.meta,
            LOG: self.segment,
            INDEX: self.offset_index,
            TIME_INDEX: self.time_index,
        }
        show = shown.get(name) or shown.get(os.path.splitext(name)[1])
        if show is None:
            self.wrong(path, f"no known kind of file: it should end in {', '.join((*KNOWN_SUFFIXES, *KNOWN_NAMES))}")
            return
        try:
            show(path)
        except OSError as e:
            self.wrong(path, e.strerror or str(e))

    def segment(self, path: str) -> None:
        self.show("segment", file=path, size_bytes=os.path.getsize(path))
        expected, epoch = parse_base_offset(os.path.basename(path)) or 0, -1
        gaps = self.may_have_gaps(os.path.dirname(path))
        try:
            for found in self.batches(path, expected, whole=self.verify or self.records):
                self.batch(path, found)
                header = found.header
                if self.verify and not gaps and header.base_offset != expected:
                    self.wrong(path, f"at byte {found.position}: offset {header.base_offset} where {expected} belongs")
                if self.verify and header.leader_epoch < epoch:
                    self.wrong(path, f"at byte {found.position}: epoch {header.leader_epoch} after epoch {epoch}")
                expected, epoch = header.last_offset + 1, header.leader_epoch
        except BadBatch as e:
            self.wrong(path, str(e))

    def may_have_gaps(self, directory: str) -> bool:
        """Whether the log is one whose offsets are not all there, after compaction."""
        try:
            found = checkpoints.decode(self.files.read(os.path.join(directory, checkpoints.FILE_NAME)))
        except (FileNotFoundError, checkpoints.DamagedCheckpoint):
            return False
        return found.gaps or found.compacted_until > 0

    def batches(self, path: str, expected_offset: int, whole: bool) -> Iterator[ScannedBatch]:
        file = self.files.open(path, read_only=True)
        try:
            yield from (verify if whole else walk)(file, 0, file.size(), expected_offset)
        finally:
            file.close()

    def batch(self, path: str, found: ScannedBatch) -> None:
        header = found.header
        codec = CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec)
        fields = {name: value for name, value in header._asdict().items() if name not in ("batch_length", "magic")}
        self.show(
            "batch",
            position=found.position,
            size_bytes=header.size_bytes,
            last_offset=header.last_offset,
            codec=codec,
            control=header.is_control,
            transactional=header.is_transactional,
            **fields,
        )
        if not self.records:
            reason = damage(found) if self.verify else None
            if reason is not None:
                self.damaged(path, found, reason)
            return
        try:
            for record in iterate_records(found.batch, header, MAX_DECOMPRESSED_BYTES):
                self.show(
                    "record",
                    offset=record.offset,
                    timestamp_ms=record.timestamp_ms,
                    key=printable(record.key),
                    value=printable(record.value),
                    headers={name: printable(value) for name, value in record.headers},
                )
        except MalformedMessage as e:
            self.damaged(path, found, str(e))

    def damaged(self, path: str, found: ScannedBatch, reason: str) -> None:
        """Reports a batch at which consumers stop."""
        first, last = found.header.base_offset, found.header.last_offset
        self.wrong(
            path,
            f"at byte {found.position}: the records of offsets {first} to {last} are damaged: {reason};"
            f" `penstock log cut {path} --offset {first}` takes them out",
        )

    def offset_index(self, path: str) -> None:
        base = parse_base_offset(os.path.basename(path)) or 0
        data = self.files.read(path)
        self.show("index", file=path, entries=len(data) // OFFSET_ENTRY.size)
        if len(data) % OFFSET_ENTRY.size:
            self.wrong(path, f"{len(data)} bytes are no whole number of entries")
        there = self.known_batches(path, INDEX, base)
        last = (-1, -1)
        for entry in OFFSET_ENTRY.iter_unpack(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size]):
            relative_offset, position = entry
            self.show("index-entry", offset=base + relative_offset, position=position)
            if relative_offset <= last[0] or position <= last[1]:
                self.wrong(path, f"the entry for offset {base + relative_offset} does not come after the one before it")
            if there is not None and there.get(base + relative_offset, (-1, -1))[0] != position:
                self.wrong(path, f"no batch of offset {base + relative_offset} is at position {position}")
            last = entry

    def time_index(self, path: str) -> None:
        base = parse_base_offset(os.path.basename(path)) or 0
        data = self.files.read(path)
        self.show("time-index", file=path, entries=len(data) // TIME_ENTRY.size)
        if len(data) % TIME_ENTRY.size:
            self.wrong(path, f"{len(data)} bytes are no whole number of entries")
        there = self.known_batches(path, TIME_INDEX, base)
        last = (-1, -1)
        for entry in TIME_ENTRY.iter_unpack(data[: len(data) // TIME_ENTRY.size * TIME_ENTRY.size]):
            timestamp_ms, relative_offset = entry
            self.show("time-index-entry", timestamp_ms=timestamp_ms, offset=base + relative_offset)
            if timestamp_ms <= last[0] or relative_offset <= last[1]:
                self.wrong(path, f"the entry for time {timestamp_ms} does not come after the one before it")
            if there is not None and there.get(base + relative_offset, (-1, -1))[1] != timestamp_ms:
                self.wrong(path, f"the largest time up to offset {base + relative_offset} is not {timestamp_ms}")
            last = entry

    def known_batches(self, path: str, suffix: str, base: int) -> dict[int, tuple[int, int]] | None:
        """(position, largest timestamp so far) by base offset, of the segment of an index; None to check nothing."""
        segment = path.removesuffix(suffix) + LOG
        if not self.verify or not os.path.exists(segment):
            return None
        there: dict[int, tuple[int, int]] = {}
        largest_ms = -1
        try:
            for position, header, _ in self.batches(segment, base, whole=False):
                largest_ms = max(largest_ms, header.max_timestamp_ms)
                there[header.base_offset] = position, largest_ms
        except BadBatch:
            pass  # it is reported where the segment is shown
        return there

    def checkpoint(self, path: str) -> None:
        try:
            found = checkpoints.decode(self.files.read(path))
        except checkpoints.DamagedCheckpoint as e:
            self.wrong(path, f"the checkpoint is damaged: {e}")
            return
        self.describe(found, path)
        if self.verify:
            self.check_sizes(path, os.path.dirname(path), found)

    def table(self, path: str) -> None:
        try:
            for (topic_id, partition), data in checkpoints.decode_table(self.files.read(path)):
                self.describe(checkpoints.decode(data), path, topic_id=str(topic_id), partition=partition)
        except checkpoints.DamagedCheckpoint as e:
            self.wrong(path, f"the table of checkpoints is damaged: {e}")

    def describe(self, found: checkpoints.Checkpoint, path: str, **fields: Any) -> None:
        self.show(
            "checkpoint",
            file=path,
            **fields,
            sequence=found.sequence,
            start_offset=found.start_offset,
            end_offset=found.end_offset,
            compacted_until=found.compacted_until,
            snapshot_bytes=len(found.snapshot),
            epochs=[list(entry) for entry in found.epochs],
        )
        for row in found.segments:
            self.show("checkpointed-segment", **row._asdict())

    def check_sizes(self, path: str, directory: str, found: checkpoints.Checkpoint) -> None:
        for row in found.segments:
            segment = os.path.join(directory, f"{row.base_offset:020d}{LOG}")
            size = os.path.getsize(segment) if os.path.exists(segment) else -1
            if size < row.size_bytes or (row is not found.segments[-1] and size != row.size_bytes):
                there = "is gone" if size < 0 else f"has {size} bytes"
                self.wrong(path, f"{os.path.basename(segment)} {there}; {row.size_bytes} were on disk")

    def meta(self, path: str) -> None:
        try:
            meta = read_meta(self.files, os.path.dirname(path) or ".")
        except WrongDirectory as e:
            self.wrong(path, str(e))
            return
        assert meta is not None, "the file was there"
        self.show("directory", file=path, **msgspec.to_builtins(meta))


def printable(data: bytes | None) -> str | None:
    """Text where it is some, else escaped; long ones are cut."""
    if data is None:
        return None
    text = data[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text if len(data) <= MAX_SHOWN_BYTES else f"{text}... ({len(data)} bytes)"
