"""Settings in which external tools record who owns a topic or group. Brokers ignore them.

They are stored with the topic or group, so that deleting it deletes them too. Used by `topic` and `group`.
"""

from __future__ import annotations

OWNER = "penstock.owner"
DELETION_POLICY = "penstock.deletion.policy"
MAX_OWNER_CHARS = 100
RETAIN, DELETE = "Retain", "Delete"
DELETION_POLICIES = (RETAIN, DELETE)
