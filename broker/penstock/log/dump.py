"""Prints and checks the files of a data directory offline, for `penstock log dump`.

Writes one line per batch, record, index entry and checkpoint, as text or JSON. Each problem is a line too and makes the
exit code 1. Files are only read; if a broker is running, its newest bytes can look torn.
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
from penstock.log.repair import find_damage
from penstock.log.scan import BadBatch, ScannedBatch, scan_headers, scan_verified
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
    """Print files, or all files of a directory. Return the exit code: 1 if there is a problem, else 0."""
    dumper = Dumper(verify, records, json, out)
    for path in paths:
        dumper.dump_path(path)
    return 1 if dumper.problems else 0


class Dumper:
    """Output options, and the number of problems found so far."""

    def __init__(self, verify: bool, records: bool, json: bool, out: TextIO) -> None:
        self.verify, self.records, self.json, self.out = verify, records, json, out
        self.files = OsFiles()
        self.problems = 0

    def write_row(self, kind: str, **fields: Any) -> None:
        """Write one line."""
        if self.json:
            self.out.write(json_module.dumps({"kind": kind, **fields}) + "\n")
        else:
            self.out.write(kind + "".join(f" {name}={value}" for name, value in fields.items()) + "\n")

    def report_problem(self, path: str, reason: str) -> None:
        """Write a problem line and count it."""
        self.problems += 1
        self.write_row("problem", file=path, reason=reason)

    def dump_path(self, path: str) -> None:
        """Print a file, or all known files below a directory."""
        if not os.path.isdir(path):
            self.dump_file(path)
            return
        for name in sorted(os.listdir(path)):
            inner = os.path.join(path, name)
            if name in KNOWN_NAMES or parse_base_offset(name) is not None:
                self.dump_file(inner)
            elif parse_partition(name) is not None and os.path.isdir(inner):
                self.dump_path(inner)

    def dump_file(self, path: str) -> None:
        """Print a file by its name or suffix."""
        name = os.path.basename(path)
        handlers = {
            checkpoints.FILE_NAME: self.dump_checkpoint_file,
            checkpoints.TABLE_NAME: self.dump_table,
            META_NAME: self.dump_meta,
            LOG: self.dump_segment,
            INDEX: self.dump_offset_index,
            TIME_INDEX: self.dump_time_index,
        }
        handler = handlers.get(name) or handlers.get(os.path.splitext(name)[1])
        if handler is None:
            self.report_problem(
                path, f"unknown file type; expected one of {', '.join((*KNOWN_SUFFIXES, *KNOWN_NAMES))}"
            )
            return
        try:
            handler(path)
        except OSError as e:
            self.report_problem(path, e.strerror or str(e))

    def dump_segment(self, path: str) -> None:
        """Print a segment's batches; with `verify`, check their order and leader epochs."""
        self.write_row("segment", file=path, size_bytes=os.path.getsize(path))
        expected, epoch = parse_base_offset(os.path.basename(path)) or 0, -1
        gaps = self.may_have_gaps(os.path.dirname(path))
        try:
            for found in self.scan_batches(path, expected, whole=self.verify or self.records):
                self.dump_batch(path, found)
                header = found.header
                if self.verify and not gaps and header.base_offset != expected:
                    reason = f"expected offset {expected}, got {header.base_offset}"
                    self.report_problem(path, f"at byte {found.position}: {reason}")
                if self.verify and header.leader_epoch < epoch:
                    reason = f"leader epoch {header.leader_epoch} after epoch {epoch}"
                    self.report_problem(path, f"at byte {found.position}: {reason}")
                expected, epoch = header.last_offset + 1, header.leader_epoch
        except BadBatch as e:
            self.report_problem(path, str(e))

    def may_have_gaps(self, directory: str) -> bool:
        """Return whether the log may skip offsets, because it was compacted."""
        try:
            found = checkpoints.decode(self.files.read(os.path.join(directory, checkpoints.FILE_NAME)))
        except (FileNotFoundError, checkpoints.DamagedCheckpoint):
            return False
        return found.gaps or found.compacted_until > 0

    def scan_batches(self, path: str, expected_offset: int, whole: bool) -> Iterator[ScannedBatch]:
        """Yield a segment's batches, with their bytes if `whole`. Raises BadBatch."""
        file = self.files.open(path, read_only=True)
        try:
            yield from (scan_verified if whole else scan_headers)(file, 0, file.size(), expected_offset)
        finally:
            file.close()

    def dump_batch(self, path: str, found: ScannedBatch) -> None:
        """Print a batch and, if requested, its records."""
        header = found.header
        codec = CODECS[header.codec] if header.codec < len(CODECS) else str(header.codec)
        fields = {name: value for name, value in header._asdict().items() if name not in ("batch_length", "magic")}
        self.write_row(
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
            reason = find_damage(found) if self.verify else None
            if reason is not None:
                self.report_damaged_batch(path, found, reason)
            return
        try:
            for record in iterate_records(found.batch, header, MAX_DECOMPRESSED_BYTES):
                self.write_row(
                    "record",
                    offset=record.offset,
                    timestamp_ms=record.timestamp_ms,
                    key=to_text(record.key),
                    value=to_text(record.value),
                    headers={name: to_text(value) for name, value in record.headers},
                )
        except MalformedMessage as e:
            self.report_damaged_batch(path, found, str(e))

    def report_damaged_batch(self, path: str, found: ScannedBatch, reason: str) -> None:
        """Report a batch at which consumers stop."""
        first, last = found.header.base_offset, found.header.last_offset
        self.report_problem(
            path,
            f"at byte {found.position}: records of offsets {first} to {last} are damaged: {reason};"
            f" remove them with `penstock log cut {path} --offset {first}`",
        )

    def dump_offset_index(self, path: str) -> None:
        """Print an offset index; with `verify`, compare it with its segment."""
        base = parse_base_offset(os.path.basename(path)) or 0
        data = self.files.read(path)
        self.write_row("index", file=path, entries=len(data) // OFFSET_ENTRY.size)
        if len(data) % OFFSET_ENTRY.size:
            self.report_problem(path, f"size {len(data)} is not a multiple of the entry size")
        known = self.known_batches(path, INDEX, base)
        last = (-1, -1)
        for entry in OFFSET_ENTRY.iter_unpack(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size]):
            relative_offset, position = entry
            self.write_row("index-entry", offset=base + relative_offset, position=position)
            if relative_offset <= last[0] or position <= last[1]:
                self.report_problem(path, f"entry for offset {base + relative_offset} is out of order")
            if known is not None and known.get(base + relative_offset, (-1, -1))[0] != position:
                self.report_problem(path, f"no batch with offset {base + relative_offset} at position {position}")
            last = entry

    def dump_time_index(self, path: str) -> None:
        """Print a time index; with `verify`, compare it with its segment."""
        base = parse_base_offset(os.path.basename(path)) or 0
        data = self.files.read(path)
        self.write_row("time-index", file=path, entries=len(data) // TIME_ENTRY.size)
        if len(data) % TIME_ENTRY.size:
            self.report_problem(path, f"size {len(data)} is not a multiple of the entry size")
        known = self.known_batches(path, TIME_INDEX, base)
        last = (-1, -1)
        for entry in TIME_ENTRY.iter_unpack(data[: len(data) // TIME_ENTRY.size * TIME_ENTRY.size]):
            timestamp_ms, relative_offset = entry
            self.write_row("time-index-entry", timestamp_ms=timestamp_ms, offset=base + relative_offset)
            if timestamp_ms <= last[0] or relative_offset <= last[1]:
                self.report_problem(path, f"entry for timestamp {timestamp_ms} is out of order")
            if known is not None and known.get(base + relative_offset, (-1, -1))[1] != timestamp_ms:
                self.report_problem(
                    path, f"largest timestamp up to offset {base + relative_offset} is not {timestamp_ms}"
                )
            last = entry

    def known_batches(self, path: str, suffix: str, base: int) -> dict[int, tuple[int, int]] | None:
        """Return (position, largest timestamp so far) by base offset of an index's segment; None to skip the check."""
        segment = path.removesuffix(suffix) + LOG
        if not self.verify or not os.path.exists(segment):
            return None
        known: dict[int, tuple[int, int]] = {}
        largest_ms = -1
        try:
            for position, header, _ in self.scan_batches(segment, base, whole=False):
                largest_ms = max(largest_ms, header.max_timestamp_ms)
                known[header.base_offset] = position, largest_ms
        except BadBatch:
            pass  # reported when the segment itself is printed
        return known

    def dump_checkpoint_file(self, path: str) -> None:
        """Print a partition's checkpoint; with `verify`, compare the segment sizes."""
        try:
            found = checkpoints.decode(self.files.read(path))
        except checkpoints.DamagedCheckpoint as e:
            self.report_problem(path, f"checkpoint is damaged: {e}")
            return
        self.dump_checkpoint(found, path)
        if self.verify:
            self.check_sizes(path, os.path.dirname(path), found)

    def dump_table(self, path: str) -> None:
        """Print the checkpoints of all partitions."""
        try:
            for (topic_id, partition), data in checkpoints.decode_table(self.files.read(path)):
                self.dump_checkpoint(checkpoints.decode(data), path, topic_id=str(topic_id), partition=partition)
        except checkpoints.DamagedCheckpoint as e:
            self.report_problem(path, f"checkpoint table is damaged: {e}")

    def dump_checkpoint(self, found: checkpoints.Checkpoint, path: str, **fields: Any) -> None:
        """Print one checkpoint and its segments."""
        self.write_row(
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
            self.write_row("checkpointed-segment", **row._asdict())

    def check_sizes(self, path: str, directory: str, found: checkpoints.Checkpoint) -> None:
        """Report segment files that are shorter than checkpointed, or sealed and of another size."""
        for row in found.segments:
            segment = os.path.join(directory, f"{row.base_offset:020d}{LOG}")
            size = os.path.getsize(segment) if os.path.exists(segment) else -1
            if size < row.size_bytes or (row is not found.segments[-1] and size != row.size_bytes):
                actual = "is missing" if size < 0 else f"has {size} bytes"
                self.report_problem(
                    path, f"segment {os.path.basename(segment)} {actual}; expected {row.size_bytes} bytes"
                )

    def dump_meta(self, path: str) -> None:
        """Print `meta.json`."""
        try:
            meta = read_meta(self.files, os.path.dirname(path) or ".")
        except WrongDirectory as e:
            self.report_problem(path, str(e))
            return
        assert meta is not None, "the file exists"
        self.write_row("directory", file=path, **msgspec.to_builtins(meta))


def to_text(data: bytes | None) -> str | None:
    """Return text, with other bytes escaped, cut at `MAX_SHOWN_BYTES`."""
    if data is None:
        return None
    text = data[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return text if len(data) <= MAX_SHOWN_BYTES else f"{text}... ({len(data)} bytes)"
