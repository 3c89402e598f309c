"""Validates and applies changes of settings of any resource. Called by `config_admin` and `group_settings`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.config.definition import Setting, SettingType, text_of
from penstock.control.results import AdminError, ConfigChange, ConfigOperation
from penstock.state.records import StoredSettings
from penstock.state.store import Compare, DeleteOp, PutOp, Store, StoreEntry
from penstock.wire.errors import ErrorCode

ATTEMPTS = 10
"""Attempts to write a change while other writers change the same value."""
MAX_CHANGES = 1000
"""Maximum number of settings that a request may change of one resource."""


async def rewrite_value(
    store: Store, key: str, rewrite: Callable[[StoreEntry | None], bytes | None], validate_only: bool
) -> int:
    """Replace a value by what `rewrite` returns for it (None deletes it); retry if another writer was faster.

    Returns the revision of the change, 0 if there was none. Raises `AdminError`, `StoreError`.
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
    """Raise `AdminError` for changes that are wrong whatever the present settings are."""
    if len(changes) > MAX_CHANGES:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{len(changes)} changes of one resource: at most {MAX_CHANGES}.")
    if len({change.name for change in changes}) < len(changes):
        raise AdminError(ErrorCode.INVALID_REQUEST, "A setting is listed more than once.")
    for change in changes:
        if change.operation not in set(ConfigOperation):
            raise AdminError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {change.operation}.")
        if change.value is None and change.operation != ConfigOperation.DELETE:
            raise AdminError(ErrorCode.INVALID_REQUEST, f"The setting {change.name} has no value.")


def apply_changes(
    changes: Sequence[ConfigChange],
    present: StoredSettings,
    definition: Callable[[str], Setting],
    default: Callable[[str], str],
) -> dict[str, object]:
    """Return the settings after the changes. Lists are changed from their effective value, defaults included.

    DELETE accepts unknown and unset names, because tools that copy settings delete those that they know. Raises
    `InvalidSetting` for other operations on unknown names, `AdminError` for APPEND or SUBTRACT on a setting that is not
    a list.
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
            text = text_of(setting.parse_stored(new.get(change.name), default(change.name)))
            words = [word.strip() for word in text.split(",") if word.strip()]
            named = [word.strip() for word in value.split(",")]
            if change.operation == ConfigOperation.APPEND:
                words += [word for word in named if word not in words]
            else:
                words = [word for word in words if word not in named]
            value = ",".join(words)
        new[change.name] = value
    return new


def normalise_changed(
    changes: Sequence[ConfigChange], new: dict[str, object], definition: Callable[[str], Setting]
) -> None:
    """Normalise the values that `apply_changes` has changed; leave the others. Raises `InvalidSetting`."""
    for name in [change.name for change in changes if change.name in new]:
        new[name] = definition(name).normalise(str(new[name]))
