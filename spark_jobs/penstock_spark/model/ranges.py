"""Offset ranges of partitions, and fetched records."""

from penstock.client import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, Fetched, OffsetRange

__all__ = ["EARLIEST", "LATEST", "READ_COMMITTED", "READ_UNCOMMITTED", "Fetched", "OffsetRange"]
