"""Converts the store's structures to etcd's messages and back. Used by `store` and `watch`.

The message classes are generated (aetcd); that package's own client is loaded but not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aetcd.rpc import rpc_pb2

from penstock.state.store import Compare, CompareTarget, Operation, PutOp, StoreEntry, StoreEvent

TARGETS = {
    CompareTarget.VERSION: (rpc_pb2.Compare.VERSION, "version"),
    CompareTarget.CREATE_REVISION: (rpc_pb2.Compare.CREATE, "create_revision"),
    CompareTarget.MOD_REVISION: (rpc_pb2.Compare.MOD, "mod_revision"),
    CompareTarget.VALUE: (rpc_pb2.Compare.VALUE, "value"),
}
RESULTS = {
    "=": rpc_pb2.Compare.EQUAL,
    "!=": rpc_pb2.Compare.NOT_EQUAL,
    "<": rpc_pb2.Compare.LESS,
    ">": rpc_pb2.Compare.GREATER,
}
DELETE_EVENT = 1
FIRST_KEY = b"\x00"
AFTER_LAST_KEY = b"\x00"
"""Range end that means no end."""


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key of a prefix and the end of its range. UTF-8 has no byte 0xff, so the last byte can be
    incremented."""
    if not prefix:
        return FIRST_KEY, AFTER_LAST_KEY
    first = prefix.encode()
    return first, first[:-1] + bytes([first[-1] + 1])


def decode_key(key: bytes) -> str:
    """Decode a key; bytes of another client's key that are not UTF-8 become lone surrogates."""
    return key.decode(errors="surrogateescape")


def entry_of(kv: Any) -> StoreEntry:
    """Return the entry of a key-value message."""
    return StoreEntry(decode_key(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def event_of(event: Any) -> tuple[int, StoreEvent]:
    """Return (revision, event)."""
    kv = event.kv
    if event.type == DELETE_EVENT:
        return kv.mod_revision, StoreEvent(decode_key(kv.key), None)
    return kv.mod_revision, StoreEvent(decode_key(kv.key), entry_of(kv))


def txn_request(compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> Any:
    """Return the request. A transaction without writes reads a key, so that etcd decides it linearizably.

    Otherwise etcd would serve a transaction that only compares from the member's local state.
    """
    success = [operation_of(op) for op in then]
    if not then and not otherwise:
        key = compares[0].key.encode() if compares else FIRST_KEY
        success.append(rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=key, count_only=True)))
    return rpc_pb2.TxnRequest(
        compare=[compare_of(c) for c in compares], success=success, failure=[operation_of(op) for op in otherwise]
    )


def compare_of(compare: Compare) -> Any:
    """Return the message of a condition."""
    target, field = TARGETS[compare.target]
    return rpc_pb2.Compare(
        key=compare.key.encode(), target=target, result=RESULTS[compare.op], **{field: compare.value}
    )


def operation_of(operation: Operation) -> Any:
    """Return the message of an operation."""
    if isinstance(operation, PutOp):
        put = rpc_pb2.PutRequest(key=operation.key.encode(), value=operation.value, lease=operation.lease)
        return rpc_pb2.RequestOp(request_put=put)
    if operation.prefix:
        first, end = prefix_range(operation.key)
        delete = rpc_pb2.DeleteRangeRequest(key=first, range_end=end)
    else:
        delete = rpc_pb2.DeleteRangeRequest(key=operation.key.encode())
    return rpc_pb2.RequestOp(request_delete_range=delete)
