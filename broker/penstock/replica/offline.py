"""The role of a replica that neither leads nor follows: its log is open, but no client is served.

The partition has no leader, or this broker may not lead yet (a restarted broker leads only in a new leader epoch), or
work of the last role on the log (a truncation) is not done.
"""

from __future__ import annotations

from penstock.replica.partition import Partition


class Offline(Partition):
    """A replica without a serving role. Keeps the high watermark for the next role."""

    __slots__ = ()
