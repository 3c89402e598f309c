"""Names in a data directory that tell a broker that is alone from one of a cluster.

Imports nothing, since `cli.up` reads it on its way to become a broker.
"""

from __future__ import annotations

STATE_FILE = "state.db"
"""The embedded store: only a broker that is alone has one."""
ADOPTED_FILE = STATE_FILE + ".adopted"
"""What became of it when its records were moved to an etcd."""
