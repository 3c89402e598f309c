"""The settings of a group: those of its protocol, and those in which external tools store state.

Read by `control.group_settings`, which stores them with the group.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.config.definition import Setting, define, unknown_config
from penstock.config.kafka_settings import KAFKA_GROUP_SETTINGS
from penstock.config.modern_groups import CONSUMER_SETTINGS, SHARE_SETTINGS
from penstock.config.ownership import ownership_settings

RESET_ID, REPLAY_ID = "penstock.reset.id", "penstock.replay.id"
MAX_ID_CHARS = 200

GROUP_SETTINGS: dict[str, Setting] = {
    known.name: replace(known, dynamic=True)
    for known in (
        *CONSUMER_SETTINGS.values(),
        *SHARE_SETTINGS.values(),
        *ownership_settings("group", "group's offsets"),
        define(
            RESET_ID,
            "",
            "Id of the last completed offset reset, set by external tools to execute each once. Ignored by brokers.",
            max_chars=MAX_ID_CHARS,
        ),
        define(
            REPLAY_ID,
            "",
            "Id of the last completed replay of dead letters, set by external tools to execute each once. Ignored by"
            " brokers.",
            max_chars=MAX_ID_CHARS,
        ),
    )
}


def group_setting(name: str) -> Setting:
    """Return a group setting's definition. Raises `UnknownSetting`."""
    known = GROUP_SETTINGS.get(name) or KAFKA_GROUP_SETTINGS.get(name)
    if known is None:
        raise unknown_config("group", name)
    return known
