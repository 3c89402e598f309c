"""The embedded store's file: one SQLite table of current entries, written by one thread. Called only by `embedded`.

Each statement writes many rows: SQLite releases the interpreter lock around each statement, so many small ones would
wait for a busy event loop each time.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from typing import TypeVar

from crc32c import crc32c

from penstock.runtime.private_files import PRIVATE_MODE
from penstock.state import wal_check
from penstock.state.store import StoreEntry, StoreError

T = TypeVar("T")

SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of a damaged file. SQLite quotes a damaged schema in its message, which then may not be UTF-8."""
SCHEMA_VERSION = 1
APPLICATION_ID = 0x50454E53
"""Identifies the file as Penstock's in SQLite's header ("PENS")."""
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
    """The disk is full. The write was rolled back, and a later one may succeed."""


class Database:
    """The file at `path`, or in memory. Raises `StoreError` if it is another program's, newer, damaged or in use.

    After construction only the thread that calls `write` uses it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            new = path == IN_MEMORY or restrict_access(path) == 0
            self._connection = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=2 * ROWS_PER_STATEMENT
            )
        except (OSError, *SQLITE_ERRORS) as e:
            raise StoreError(f'cannot open the state database "{path}": {e}') from e
        try:
            self._prepare(new)
        except SQLITE_ERRORS as e:
            self._connection.close()
            raise open_error(path, e) from e
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
            found = wal_check.find_damage(self.path + "-wal")
        except OSError as e:
            raise StoreError(f'cannot read "{self.path}-wal": {e}') from e
        if found is not None:
            raise damage_error(self.path + "-wal", found)

    def _check_identity(self) -> None:
        identity = self._connection.execute("PRAGMA application_id").fetchone()[0]
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if identity != APPLICATION_ID and tables:
            raise StoreError(f'"{self.path}" is the database of another program; use another data directory')
        if version > SCHEMA_VERSION:
            raise StoreError(
                f'the state database "{self.path}" has format {version}, but this version of Penstock supports up to'
                f" {SCHEMA_VERSION}; run the version that wrote it, or a newer one"
            )

    def load(self) -> tuple[list[StoreEntry], int]:
        """Return all entries in key order and the revision; delete keys with a lease (see `embedded`).

        Raises `StoreError` if a row is damaged.
        """
        try:
            found = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise damage_error(self.path, str(found))
            revision = self._load_revision()
            rows = self._connection.execute("SELECT * FROM entries ORDER BY key").fetchall()
        except (*SQLITE_ERRORS, struct.error) as e:
            raise open_error(self.path, e) from e
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
            raise damage_error(self.path, "the revision's checksum is wrong")
        return int(rows[0][0])

    def write(self, puts: Sequence[StoreEntry], deletes: Sequence[bytes], revision: int) -> None:
        """Write entries, delete keys and set the revision in one durable commit.

        Raises `DiskFull` after a rollback; after any other `StoreError` the file must not be used any longer.
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
                return StoreError(f'cannot roll back the state database "{self.path}": {e}')
            return DiskFull(f'cannot write the state database "{self.path}": the disk is full; free some space')
        return StoreError(f'the state database "{self.path}" failed: {error}; restart the broker')

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def row_of(entry: StoreEntry) -> Row:
    """Return the row of an entry, with its checksum."""
    key = entry.key.encode()
    numbers = (entry.create_revision, entry.mod_revision, entry.version, entry.lease)
    return (key, entry.value, *numbers, checksum(key, entry.value, *numbers))


def entry_of(row: Row, path: str) -> StoreEntry:
    """Return the entry of a row. Raises `StoreError` if its checksum is wrong."""
    key, value, create_revision, mod_revision, version, lease, expected = row
    try:
        sound = checksum(key, value, create_revision, mod_revision, version, lease) == expected
        text = key.decode()
    except (TypeError, AttributeError, struct.error, UnicodeDecodeError):
        sound, text = False, repr(key)
    if not sound:
        raise damage_error(path, f"the checksum of {text} is wrong")
    return StoreEntry(text, value, create_revision, mod_revision, version, lease)


ROW_NUMBERS = struct.Struct("<qqqq")


def checksum(key: bytes, value: bytes, create_revision: int, mod_revision: int, version: int, lease: int) -> int:
    """Return the CRC-32C of all columns of a row."""
    return crc32c(value, crc32c(ROW_NUMBERS.pack(create_revision, mod_revision, version, lease), crc32c(key)))


def revision_checksum(revision: int) -> int:
    """Return the CRC-32C of the stored revision."""
    return crc32c(ROW_NUMBERS.pack(revision, 0, 0, 0))


def damage_error(path: str, what: str) -> StoreError:
    """Return the error for a damaged file."""
    return StoreError(
        f'the state database "{path}" is damaged: {what}; restore it from a backup, or use another data directory'
    )


def restrict_access(path: str) -> int:
    """Create the file if it is missing, let only its owner access it, and return its size. Raises OSError.

    It has credentials. SQLite gives the files beside it the same mode.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
    try:
        status = os.fstat(descriptor)
        if status.st_mode & ~PRIVATE_MODE & 0o777:
            os.fchmod(descriptor, PRIVATE_MODE)
        return status.st_size
    finally:
        os.close(descriptor)


def open_error(path: str, error: Exception) -> StoreError:
    """Return the error for a SQLite failure during opening."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f'the state database "{path}" is in use by another process; stop it, or use another data directory'
        )
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
        return DiskFull(f'cannot open the state database "{path}": the disk is full; free some space')
    return StoreError(
        f'cannot read the state database "{path}": {error}; restore it from a backup, or use another data directory'
    )


def chunks(items: Sequence[T]) -> list[Sequence[T]]:
    """Split rows into those of single statements."""
    return [items[i : i + ROWS_PER_STATEMENT] for i in range(0, len(items), ROWS_PER_STATEMENT)]


def sync_directory(path: str) -> None:
    """Fsync a directory, so that a new file in it is durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
