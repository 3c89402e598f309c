"""What a broker has seen of its cluster's store, in its data directory: `store-seen.json`.

The store may go back in time, the disk does not. Written before a broker acts on anything that a newly elected
controller wrote, compared whenever it may talk to another store than before. Used by `restored`.
"""

from __future__ import annotations

import json

import msgspec
from crc32c import crc32c

from penstock.control.elections import ElectionPair
from penstock.log.types import LogError
from penstock.runtime.files import Files

FILE_NAME = "store-seen.json"
MAX_BYTES = 64 << 10


class DamagedSnapshot(LogError):
    """The file is not what was written; the message names it and the cure."""


class ObservedRevision(msgspec.Struct, frozen=True):
    """The newest election, the store's own identity (etcd's cluster id, "" where it has none) and a revision of it.

    `sets_aside` remains true from when a recovered store was accepted until data that it does not assign to this broker
    has been put aside: without that it would be taken for data of replicas that have moved, and deleted.
    `crc` is the CRC-32C of the rest, as compact JSON with sorted keys.
    """

    epoch: int = 0
    random_id: str = ""
    store_id: str = ""
    revision: int = 0
    sets_aside: bool = False
    crc: int = 0

    @property
    def pair(self) -> ElectionPair | None:
        """None where no election was seen yet."""
        return ElectionPair(self.epoch, self.random_id) if self.random_id else None

    def checksum(self) -> int:
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "crc"}
        return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def read_seen(files: Files, path: str) -> ObservedRevision | None:
    """None where nothing was written yet. Raises `DamagedSnapshot`, OSError."""
    name = f"{path}/{FILE_NAME}"
    try:
        data = files.read(name)
    except FileNotFoundError:
        return None
    cure = "restore the file from a backup of the directory, or start this broker with an empty one"
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        seen = msgspec.json.decode(data, type=ObservedRevision)
    except (ValueError, msgspec.DecodeError) as e:
        raise DamagedSnapshot(f"{name} is damaged ({e}): {cure}") from e
    if seen.crc != seen.checksum():
        raise DamagedSnapshot(f"{name} is damaged (its CRC is wrong): {cure}")
    return seen


def write_seen(files: Files, path: str, seen: ObservedRevision) -> ObservedRevision:
    """Returns when it is on disk; blocks. Raises OSError."""
    seen = msgspec.structs.replace(seen, crc=seen.checksum())
    files.write_atomic(f"{path}/{FILE_NAME}", msgspec.json.encode(seen) + b"\n")
    return seen
