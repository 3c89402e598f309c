"""The log level of this broker as an admin client reads and changes it (KIP-412). Called by `api.configs`.

There is one logger, `root`. A level that was changed holds until the process ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.definition import Setting, SettingSource, SettingType
from penstock.control.config_describe import ConfigDescription
from penstock.control.results import AdminError, ConfigChange, ConfigOperation
from penstock.runtime import logging
from penstock.wire.errors import ErrorCode

ROOT = "root"
LEVELS = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "ERROR": "error",
    "FATAL": "critical",
}
"""Kafka's names of the levels, and the broker's own."""
NAMES = {own: name for name, own in LEVELS.items()}
LOGGER = Setting(ROOT, SettingType.STRING, "INFO", "The level from which on the broker logs.", dynamic=True)


def describe_loggers() -> list[ConfigDescription]:
    """The level of the one logger there is."""
    return [ConfigDescription(LOGGER, NAMES[logging.current_level()], SettingSource.BROKER_LOGGER, [])]


def alter_loggers(changes: Sequence[ConfigChange], validate_only: bool) -> None:
    """Change the level. Raises `AdminError`, and changes nothing then."""
    level = None
    for change in changes:
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            operation = ConfigOperation(change.operation).name
            raise AdminError(
                ErrorCode.INVALID_REQUEST, f"{operation} operation is not allowed for the BROKER_LOGGER resource"
            )
        if change.name != ROOT:
            raise AdminError(
                ErrorCode.INVALID_CONFIG, f'logger "{change.name[:100]}" does not exist; the broker has "{ROOT}" alone'
            )
        if change.operation == ConfigOperation.DELETE:
            raise AdminError(ErrorCode.INVALID_REQUEST, f'the level of logger "{ROOT}" cannot be removed; set one')
        if change.value not in LEVELS:
            raise AdminError(
                ErrorCode.INVALID_CONFIG,
                f'cannot set the level of "{ROOT}": "{(change.value or "")[:100]}" is no level; use one of'
                f" {', '.join(LEVELS)}",
            )
        level = LEVELS[change.value]
    if level is not None and not validate_only:
        logging.set_level(level)
