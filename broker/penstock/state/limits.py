"""Limits of keys and transactions, the same for every `Store`, checked before a disk or server sees them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.state.store import MAX_TXN_OPERATIONS, Compare, DeleteOp, Operation, PutOp

MAX_TXN_BYTES = 1_572_864
"""Maximum size of keys and values of one transaction (etcd's default for a request, 1.5 MiB)."""


def check_key(key: str) -> None:
    """Raise ValueError for a key that cannot be stored."""
    if not key:
        raise ValueError("a key cannot be empty")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the key {key!r} is not valid Unicode") from None


def check_txn(compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> None:
    """Raise ValueError if a transaction exceeds the limits or writes a key twice."""
    for what, count in (("conditions", len(compares)), ("operations", len(then)), ("operations", len(otherwise))):
        if count > MAX_TXN_OPERATIONS:
            raise ValueError(f"a transaction can have at most {MAX_TXN_OPERATIONS} {what}, not {count}")
    for compare in compares:
        check_key(compare.key)
        if compare.op not in ("=", "!=", "<", ">"):
            raise ValueError(f'unknown comparison "{compare.op}"; use =, !=, < or >')
    size_bytes = check_branch(then) + check_branch(otherwise)
    if size_bytes > MAX_TXN_BYTES:
        raise ValueError(f"a transaction can have at most {MAX_TXN_BYTES} bytes of keys and values, not {size_bytes}")


def check_branch(operations: Sequence[Operation]) -> int:
    """Return the size of one branch in bytes. Raises ValueError if a key is written twice."""
    size_bytes = 0
    puts: set[str] = set()
    deletes: list[DeleteOp] = []
    for operation in operations:
        check_key(operation.key)
        size_bytes += len(operation.key)
        if isinstance(operation, PutOp):
            size_bytes += len(operation.value)
            if operation.key in puts:
                raise ValueError(f'a transaction cannot write the key "{operation.key}" twice')
            puts.add(operation.key)
        else:
            deletes.append(operation)
    for delete in deletes:
        covered = any(key.startswith(delete.key) for key in puts) if delete.prefix else delete.key in puts
        if covered:
            raise ValueError(f'a transaction cannot both put and delete the key "{delete.key}"')
    return size_bytes
