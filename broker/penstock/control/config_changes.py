"""What changing settings has in common, whosever they are. Used by `config_admin` and `group_settings`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.config.definition import Setting, SettingType
from penstock.control.results import AdminError, ConfigChange, ConfigOperation
from penstock.state.store import Compare, DeleteOp, PutOp, Store, StoreEntry
from penstock.wire.errors import ErrorCode

ATTEMPTS = 10
"""How often a change is tried again when somebody else's came between its reading and its writing."""
MAX_CHANGES = 1000
"""Settings that one resource of a request may change."""


async def rewrite_value(
    store: Store, key: str, rewrite: Callable[[StoreEntry | None], bytes | None], validate_only: bool
) -> int:
    """Replaces a value by what `rewrite` makes of it, None where it is to be nothing, again where somebody else was
    faster. Returns the revision of the change, 0 where there was nothing to change. Raises `AdminError`, `StoreError`.
    """
    for _ in range(ATTEMPTS):
        entry = await store.get(key)
        value = rewrite(entry)
        if validate_only or value == (None if entry is None else entry.value):
            return 0
        condition = Compare.absent(key) if entry is None else Compare.unchanged(entry)
        result = await store.txn([condition], [DeleteOp(key) if value is None else PutOp(key, value)])
        if result.succeeded:
            return result.revision
    raise AdminError(ErrorCode.REQUEST_TIMED_OUT, "The settings are being changed by others: try again.")


def check_changes(changes: Sequence[ConfigChange]) -> None:
    """Raises `AdminError` where a request is wrong whatever is set."""
    if len(changes) > MAX_CHANGES:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{len(changes)} changes of one resource: at most {MAX_CHANGES}.")
    if len({change.name for change in changes}) < len(changes):
        raise AdminError(ErrorCode.INVALID_REQUEST, "A setting is named twice.")
    for change in changes:
        if change.operation not in set(ConfigOperation):
            raise AdminError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation}.")
        if change.value is None and change.operation != ConfigOperation.DELETE:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"The setting {change.name} has no value.")


def apply(
    changes: Sequence[ConfigChange],
    present: Mapping[str, str],
    definition: Callable[[str], Setting],
    default: Callable[[str], str],
) -> dict[str, str]:
    """Return what is set after the changes; lists are appended to and subtracted from as they stand, defaults included.

    A name may be unset whether or not it is known or set: tools that copy settings unset those that they know.
    Raises `InvalidSetting` for other operations on unknown names, `AdminError` where an operation does not fit.
    """
    new = dict(present)
    for change in changes:
        if change.operation == ConfigOperation.DELETE:
            new.pop(change.name, None)
            continue
        setting = definition(change.name)
        assert change.value is not None, "checked before"
        value = change.value.strip()
        if change.operation != ConfigOperation.SET:
            if setting.kind is not SettingType.LIST:
                raise AdminError(
                    ErrorCode.INVALID_CONFIG, f"Cannot append to or subtract from {change.name}: it is not a list."
                )
            words = [word.strip() for word in new.get(change.name, default(change.name)).split(",") if word.strip()]
            named = [word.strip() for word in value.split(",")]
            if change.operation == ConfigOperation.APPEND:
                words += [word for word in named if word not in words]
            else:
                words = [word for word in words if word not in named]
            value = ",".join(words)
        new[change.name] = value
    return new
