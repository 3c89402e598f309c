"""The error of a snapshot task."""

from __future__ import annotations


class SnapshotError(Exception):
    """A snapshot cannot be taken, stored, verified or restored. The message states the reason and the fix."""
