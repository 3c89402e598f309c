"""Copied into kafka-python's suite as `test/service.py`, which its source distribution lacks.

The suite imports two names from it. Against an external broker it uses only the first, which needs no behaviour. A test
that needs its own broker fails with an error that says so.
"""

from __future__ import annotations


class ExternalService:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """Do nothing: the broker runs already."""

    def stop(self) -> None:
        """Do nothing: the suite does not own the broker."""

    def dump_logs(self) -> None:
        """Do nothing: the suite does not own the broker's logs."""


class SpawnedService:
    def __init__(self, *args: object, **options: object) -> None:
        raise RuntimeError("this suite runs against an external broker and cannot start one")
