"""Settings in which external tools record who owns a topic or group. Brokers ignore them.

They are stored with the topic or group, so that deleting it deletes them too. Used by `topic` and `group`.
"""

from __future__ import annotations

from penstock.config.definition import Setting, define

OWNER = "penstock.owner"
DELETION_POLICY = "penstock.deletion.policy"
MAX_OWNER_CHARS = 100
RETAIN, DELETE = "Retain", "Delete"


def ownership_settings(owned: str, deleted: str) -> list[Setting]:
    """Return the settings of a kind of resource, `owned`; `deleted` is what the deletion policy applies to."""
    return [
        define(
            DELETION_POLICY,
            RETAIN,
            f"Whether external tools keep or delete the {deleted} when its owner is deleted. Ignored by brokers.",
            allowed=(RETAIN, DELETE),
        ),
        define(
            OWNER,
            "",
            f"Owner of the {owned}, such as the UID of a Kubernetes object, set by external tools. Ignored by brokers.",
            max_chars=MAX_OWNER_CHARS,
        ),
    ]
