"""File names that distinguish the data directory of a single broker from that of a cluster member.

Imports nothing: `cli.up` reads it early in the start of a broker.
"""

from __future__ import annotations

STATE_FILE = "state.db"
"""The embedded store; only a single broker has it."""
ADOPTED_FILE = STATE_FILE + ".adopted"
"""Name of the embedded store after its records were moved to an etcd."""
