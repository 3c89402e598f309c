"""What a broker has observed of its cluster's store, persisted in `store-seen.json` in its data directory.

The store can go back in time, the disk cannot. The file is written before a broker acts on anything that a newly
elected controller wrote, and compared whenever the broker may be connected to another store. Used by `restored`.
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
    """The file is corrupt; the message has its name and the fix."""


class ObservedRevision(msgspec.Struct, frozen=True):
    """The newest election, the store's identity (etcd's cluster id, "" if it has none) and a revision of it.

    `sets_aside` is true from the acceptance of a recovered store until this broker has quarantined the data that the
    store does not assign to it; without that it would be deleted as data of moved replicas. `crc` is the CRC-32C of the
    other fields, as compact JSON with sorted keys.
    """

    epoch: int = 0
    random_id: str = ""
    store_id: str = ""
    revision: int = 0
    sets_aside: bool = False
    crc: int = 0

    @property
    def pair(self) -> ElectionPair | None:
        """The observed election; None if there is none."""
        return ElectionPair(self.epoch, self.random_id) if self.random_id else None

    def checksum(self) -> int:
        """Return the CRC of the other fields."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "crc"}
        return crc32c(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())


def read_observed(files: Files, path: str) -> ObservedRevision | None:
    """Read the file; None if it does not exist. Raises `DamagedSnapshot`, OSError."""
    name = f"{path}/{FILE_NAME}"
    try:
        data = files.read(name)
    except FileNotFoundError:
        return None
    cure = "restore the file from a backup of the directory, or start this broker with an empty one"
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"it has {len(data)} bytes")
        observed = msgspec.json.decode(data, type=ObservedRevision)
    except (ValueError, msgspec.DecodeError) as e:
        raise DamagedSnapshot(f"{name} is damaged ({e}): {cure}") from e
    if observed.crc != observed.checksum():
        raise DamagedSnapshot(f"{name} is damaged (its CRC is wrong): {cure}")
    return observed


def write_observed(files: Files, path: str, observed: ObservedRevision) -> ObservedRevision:
    """Write the file durably. Blocks. Raises OSError."""
    observed = msgspec.structs.replace(observed, crc=observed.checksum())
    files.write_atomic(f"{path}/{FILE_NAME}", msgspec.json.encode(observed) + b"\n")
    return observed
