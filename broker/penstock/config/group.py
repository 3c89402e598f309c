"""The settings of a group, in which external tools store state. Brokers ignore them.

Read by `control.group_settings`, which stores them with the group.
"""

from __future__ import annotations

from penstock.config.definition import Setting, SettingType, unknown_config
from penstock.config.kafka_settings import KAFKA_GROUP_SETTINGS
from penstock.config.ownership import DELETION_POLICIES, DELETION_POLICY, MAX_OWNER_CHARS, OWNER, RETAIN

RESET_ID = "penstock.reset.id"
MAX_RESET_ID_CHARS = 200

GROUP_SETTINGS: dict[str, Setting] = {
    known.name: known
    for known in (
        Setting(
            DELETION_POLICY,
            SettingType.STRING,
            RETAIN,
            "Whether external tools keep or delete the group's offsets when its owner is deleted. Ignored by brokers.",
            allowed=DELETION_POLICIES,
            dynamic=True,
        ),
        Setting(
            OWNER,
            SettingType.STRING,
            "",
            "Owner of the group, such as the UID of a Kubernetes object, set by external tools. Ignored by brokers.",
            dynamic=True,
            max_chars=MAX_OWNER_CHARS,
        ),
        Setting(
            RESET_ID,
            SettingType.STRING,
            "",
            "Id of the last completed offset reset, set by external tools to execute each once. Ignored by brokers.",
            dynamic=True,
            max_chars=MAX_RESET_ID_CHARS,
        ),
    )
}


def group_setting(name: str) -> Setting:
    """Return a group setting's definition. Raises `UnknownSetting`."""
    known = GROUP_SETTINGS.get(name)
    if known is not None:
        return known
    if name in KAFKA_GROUP_SETTINGS:
        return KAFKA_GROUP_SETTINGS[name].setting
    raise unknown_config("group", name)


def normalise_group_setting(name: str, text: str) -> str:
    """Return a group setting's value as it is stored and shown. Raises `InvalidSetting`."""
    if name in KAFKA_GROUP_SETTINGS:
        return KAFKA_GROUP_SETTINGS[name].check(text)
    return group_setting(name).normalise(text)
