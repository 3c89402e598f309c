"""The role of a replica that neither leads nor follows for now: its log is kept open, and nobody is served.

So it is while nobody leads, while this broker may not lead yet (a restarted broker leads only in a new leader epoch),
and while the last role's work on the log (a truncation) is still under way.
"""

from __future__ import annotations

from penstock.replica.partition import Partition


class Offline(Partition):
    """See the module. Keeps what was known of the high watermark for the next role."""

    __slots__ = ()
