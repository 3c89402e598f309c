"""Reads a snapshot from etcd's JSON API (the gRPC gateway of its client port)."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from penstock_operator.snapshots.errors import SnapshotError

TIMEOUT_S = 30.0
MAX_LINE_BYTES = 1 << 20
"""etcd sends 32 KiB of the database in each line."""
MAX_STATUS_BYTES = 65_536
T = TypeVar("T")


class _StatusHeader(msgspec.Struct, frozen=True):
    member_id: int = 0


class _MemberStatus(msgspec.Struct, frozen=True):
    header: _StatusHeader = _StatusHeader()
    leader: int = 0
    version: str = ""


class _StreamChunk(msgspec.Struct, frozen=True):
    remaining_bytes: int = 0
    blob: bytes = b""


class _StreamFailure(msgspec.Struct, frozen=True):
    message: str = ""


class _StreamLine(msgspec.Struct, frozen=True):
    result: _StreamChunk | None = None
    error: _StreamFailure | None = None


class SnapshotMember(msgspec.Struct, frozen=True):
    """The member whose snapshot is read."""

    endpoint: str
    version: str


def choose_member(endpoints: Sequence[str], context: ssl.SSLContext | None) -> SnapshotMember:
    """Return the leader, whose data is the newest. Raises `SnapshotError` if no endpoint is that of a leader."""
    problems = []
    for endpoint in endpoints:
        try:
            with _Call(endpoint, context, "status") as response:
                status = _decode(endpoint, response.read(MAX_STATUS_BYTES), _MemberStatus)
        except SnapshotError as e:
            problems.append(str(e))
            continue
        if status.leader and status.leader == status.header.member_id:
            return SnapshotMember(endpoint, status.version[:64])
    detail = f": {problems[0]}" if problems else ""
    raise SnapshotError(f"none of the {len(endpoints)} endpoints of etcd is that of a leader{detail}")


def read_snapshot(endpoint: str, context: ssl.SSLContext | None) -> Iterator[bytes]:
    """Yield the content of a member's snapshot. Raises `SnapshotError`, also if the stream ends early."""
    remaining = -1
    with _Call(endpoint, context, "snapshot") as response:
        while line := response.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise SnapshotError(f"{endpoint}: a line of the snapshot has more than {MAX_LINE_BYTES:,} bytes")
            if not line.strip():
                continue
            found = _decode(endpoint, line, _StreamLine)
            if found.error is not None:
                raise SnapshotError(f"{endpoint}: etcd ended the snapshot: {found.error.message[:300]}")
            if found.result is not None:
                remaining = found.result.remaining_bytes
                yield found.result.blob
    if remaining != 0:
        raise SnapshotError(f"{endpoint}: the snapshot ended early; retry")


class _Call:
    """A POST of an empty request to a method of etcd's maintenance API."""

    def __init__(self, endpoint: str, context: ssl.SSLContext | None, method: str) -> None:
        self._endpoint, self._path = endpoint, f"/v3/maintenance/{method}"
        parts = urlsplit(endpoint)
        host, port = parts.hostname or "", parts.port or 2379
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, port, context=context, timeout=TIMEOUT_S)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def __enter__(self) -> http.client.HTTPResponse:
        try:
            self._connection.request("POST", self._path, b"{}", {"Content-Type": "application/json"})
            response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as e:
            self._connection.close()
            raise SnapshotError(f"{self._endpoint}: {str(e) or type(e).__name__}") from None
        if response.status != http.client.OK:
            self._connection.close()
            raise SnapshotError(f"{self._endpoint}: HTTP status {response.status}")
        return response

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._connection.close()
        if isinstance(error, (OSError, http.client.HTTPException)) and not isinstance(error, SnapshotError):
            raise SnapshotError(f"{self._endpoint}: {str(error) or type(error).__name__}") from None


def _decode(endpoint: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise SnapshotError(f"{endpoint}: the response is not one of etcd's JSON API: {str(e)[:200]}") from None
