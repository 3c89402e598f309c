"""Settings by which whoever manages topics and groups from outside knows again what is whose.

They are kept with the thing itself, so that they go with it and nothing of it can be left over elsewhere. Brokers make
nothing of them. Used by `topic` and `group`.
"""

from __future__ import annotations

OWNER = "penstock.owner"
DELETION_POLICY = "penstock.deletion.policy"
MAX_OWNER_CHARS = 100
RETAIN, DELETE = "Retain", "Delete"
DELETION_POLICIES = (RETAIN, DELETE)
