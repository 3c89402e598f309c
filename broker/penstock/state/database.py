"""The embedded store's file: one SQLite table of what is current, written by one thread. Called by `embedded` alone.

Statements carry many rows each: the interpreter lock is given up and taken again around every statement, so a loop of
small ones would wait for a busy event loop each time.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from typing import TypeVar

from crc32c import crc32c

from penstock.state import wal_check
from penstock.state.store import StoreEntry, StoreError

T = TypeVar("T")

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a damaged file raises. SQLite quotes a damaged schema in its message, which then may not be UTF-8."""
SCHEMA_VERSION = 1
APPLICATION_ID = 0x50454E53
"""Marks the file as ours in SQLite's header ("PENS")."""
ROWS_PER_STATEMENT = 96
IN_MEMORY = ":memory:"
FIRST_REVISION = 1

Row = tuple[bytes, bytes, int, int, int, int, int]
"""key, value, create revision, modification revision, version, lease, checksum"""

SCHEMA = """
CREATE TABLE entries (
  key BLOB PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL,
  version INTEGER NOT NULL, lease INTEGER NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE state (revision INTEGER NOT NULL, checksum INTEGER NOT NULL);
"""


class DiskFull(StoreError):
    """No space: the write was rolled back, and a later one may succeed."""


class Database:
    """The file at `path` (or in memory). Raises `StoreError` where it is not ours, newer, damaged, or in use.

    After the constructor it belongs to the thread that calls `write`.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            new = path == IN_MEMORY or not os.path.exists(path) or os.path.getsize(path) == 0
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=2 * ROWS_PER_STATEMENT
            )
        except (OSError, *SQLITE_ERRORS) as e:
            raise StoreError(f"cannot open the state database {path}: {e}") from e
        try:
            self._prepare(new)
        except SQLITE_ERRORS as e:
            self._connection.close()
            raise refusal(path, e) from e
        except StoreError:
            self._connection.close()
            raise

    def _prepare(self, new: bool) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        if not new:
            self._check_log()
            self._check_identity()
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("BEGIN EXCLUSIVE")
        if execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in SCHEMA.split(";"):
                execute(statement)
            execute("INSERT INTO state VALUES (?, ?)", (FIRST_REVISION, revision_checksum(FIRST_REVISION)))
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        execute("COMMIT")
        if new and self.path != IN_MEMORY:
            sync_directory(os.path.dirname(os.path.abspath(self.path)))

    def _check_log(self) -> None:
        try:
            found = wal_check.damage(self.path + "-wal")
        except OSError as e:
            raise StoreError(f"cannot read {self.path}-wal: {e}") from e
        if found is not None:
            raise damaged(self.path + "-wal", found)

    def _check_identity(self) -> None:
        identity = self._connection.execute("PRAGMA application_id").fetchone()[0]
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if identity != APPLICATION_ID and tables:
            raise StoreError(f"{self.path} is a database of another program: choose another data directory")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"the state database {self.path} has format {version}, and this version of Penstock reads up to"
                f" {SCHEMA_VERSION}: run the version that wrote it, or a newer one"
            )

    def load(self) -> tuple[list[StoreEntry], int]:
        """All entries in key order and the revision, each checked. Deletes keys that hung on a lease: see `embedded`.

        Raises `StoreError` where a row is damaged.
        """
        try:
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise damaged(self.path, str(found))
            revision = self._load_revision()
            rows = self._connection.execute("SELECT * FROM entries ORDER BY key").fetchall()
        except (*SQLITE_ERRORS, struct.error) as e:
            raise refusal(self.path, e) from e
        entries = [entry_of(row, self.path) for row in rows]
        leased = [entry.key.encode() for entry in entries if entry.lease]
        if leased:
            revision += 1
            self.write([], leased, revision)
            entries = [entry for entry in entries if not entry.lease]
        return entries, revision

    def _load_revision(self) -> int:
        rows = self._connection.execute("SELECT revision, checksum FROM state").fetchall()
        if len(rows) != 1 or not isinstance(rows[0][0], int) or revision_checksum(rows[0][0]) != rows[0][1]:
            raise damaged(self.path, "the revision's checksum is wrong")
        return int(rows[0][0])

    def write(self, puts: Sequence[StoreEntry], deletes: Sequence[bytes], revision: int) -> None:
        """One durable commit: entries put, keys deleted, the new revision.

        Raises `DiskFull` after rolling back; any other `StoreError` means that the file must not be used any more.
        """
        execute = self._connection.execute
        try:
            execute("BEGIN")
            for keys in chunks(deletes):
                execute(f"DELETE FROM entries WHERE key IN ({','.join('?' * len(keys))})", keys)  # noqa: S608
            for entries in chunks(puts):
                values = ",".join(["(?,?,?,?,?,?,?)"] * len(entries))
                execute(f"INSERT OR REPLACE INTO entries VALUES {values}", [v for e in entries for v in row_of(e)])  # noqa: S608
            execute("UPDATE state SET revision = ?, checksum = ?", (revision, revision_checksum(revision)))
            execute("COMMIT")
        except SQLITE_ERRORS as e:
            raise self._failure(e) from e

    def _failure(self, error: Exception) -> StoreError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            try:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            except SQLITE_ERRORS as e:
                return StoreError(f"the state database {self.path} could not roll back: {e}")
            return DiskFull(f"no space to write the state database {self.path}: free some")
        return StoreError(f"the state database {self.path} failed: {error}; it is not used until the broker restarts")

    def close(self) -> None:
        self._connection.close()


def row_of(entry: StoreEntry) -> Row:
    key = entry.key.encode()
    numbers = (entry.create_revision, entry.mod_revision, entry.version, entry.lease)
    return (key, entry.value, *numbers, checksum(key, entry.value, *numbers))


def entry_of(row: Row, path: str) -> StoreEntry:
    key, value, create_revision, mod_revision, version, lease, expected = row
    try:
        sound = checksum(key, value, create_revision, mod_revision, version, lease) == expected
        text = key.decode()
    except (TypeError, AttributeError, struct.error, UnicodeDecodeError):
        sound, text = False, repr(key)
    if not sound:
        raise damaged(path, f"the checksum of {text} is wrong")
    return StoreEntry(text, value, create_revision, mod_revision, version, lease)


NUMBERS = struct.Struct("<qqqq")


def checksum(key: bytes, value: bytes, create_revision: int, mod_revision: int, version: int, lease: int) -> int:
    """CRC32C over all that a row says."""
    return crc32c(value, crc32c(NUMBERS.pack(create_revision, mod_revision, version, lease), crc32c(key)))


def revision_checksum(revision: int) -> int:
    return crc32c(NUMBERS.pack(revision, 0, 0, 0))


def damaged(path: str, what: str) -> StoreError:
    return StoreError(
        f"the state database {path} is damaged: {what};"
        " restore the file from a backup, or begin with another data directory"
    )


def refusal(path: str, error: Exception) -> StoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"the state database {path} is in use by another process: stop that, or use other data")
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return DiskFull(f"no space for the state database {path}: free some")
    return StoreError(
        f"the state database {path} cannot be read: {error}; restore it from a backup, or begin with other data"
    )


def chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[i : i + ROWS_PER_STATEMENT] for i in range(0, len(items), ROWS_PER_STATEMENT)]


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
