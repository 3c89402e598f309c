"""Describes and changes this broker's log level for admin clients (KIP-412). Called by `api.configs`.

There is one logger, `root`. A changed level applies until the process exits.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.config.definition import Setting, SettingSource, SettingType
from penstock.control.config_describe import ConfigDescription
from penstock.control.results import AdminError, ConfigChange, ConfigOperation
from penstock.runtime import logging
from penstock.wire.errors import ErrorCode

ROOT_LOGGER = "root"
LEVELS = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARN": "warning",
    "ERROR": "error",
    "FATAL": "critical",
}
"""Kafka's level names and the broker's own."""
KAFKA_LEVELS = {own: name for name, own in LEVELS.items()}
LOGGER = Setting(
    ROOT_LOGGER, SettingType.STRING, "INFO", "Minimum level of the messages that the broker logs.", dynamic=True
)


def describe_loggers() -> list[ConfigDescription]:
    """Describe the level of the root logger."""
    return [ConfigDescription(LOGGER, KAFKA_LEVELS[logging.current_level()], SettingSource.BROKER_LOGGER, [])]


def alter_loggers(changes: Sequence[ConfigChange], validate_only: bool) -> None:
    """Change the level. Raises `AdminError` and then changes nothing."""
    level = None
    for change in changes:
        if change.operation in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            operation = ConfigOperation(change.operation).name
            raise AdminError(
                ErrorCode.INVALID_REQUEST, f"{operation} operation is not allowed for the BROKER_LOGGER resource"
            )
        if change.name != ROOT_LOGGER:
            raise AdminError(
                ErrorCode.INVALID_CONFIG,
                f'logger "{change.name[:100]}" does not exist; the only logger is "{ROOT_LOGGER}"',
            )
        if change.operation == ConfigOperation.DELETE:
            raise AdminError(
                ErrorCode.INVALID_REQUEST, f'the level of logger "{ROOT_LOGGER}" cannot be removed; set one'
            )
        if change.value not in LEVELS:
            raise AdminError(
                ErrorCode.INVALID_CONFIG,
                f'cannot set the level of "{ROOT_LOGGER}": "{(change.value or "")[:100]}" is not a level; use one of'
                f" {', '.join(LEVELS)}",
            )
        level = LEVELS[change.value]
    if level is not None and not validate_only:
        logging.set_level(level)
