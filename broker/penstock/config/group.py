"""The settings of a group: notes of whoever manages groups, of which brokers make nothing.

Read by `control.group_settings`, which keeps them with the group.
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
            "What becomes of the group's offsets when its owner goes, for whoever manages groups; brokers make nothing"
            " of it.",
            allowed=DELETION_POLICIES,
            dynamic=True,
        ),
        Setting(
            OWNER,
            SettingType.STRING,
            "",
            "Whose the group is, for whoever manages groups, such as the UID of an object; brokers make nothing of it.",
            dynamic=True,
            max_chars=MAX_OWNER_CHARS,
        ),
        Setting(
            RESET_ID,
            SettingType.STRING,
            "",
            "The newest reset of offsets that was done, so that none is done twice; brokers make nothing of it.",
            dynamic=True,
            max_chars=MAX_RESET_ID_CHARS,
        ),
    )
}


def group_setting(name: str) -> Setting:
    """Raises `UnknownSetting`."""
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
