"""Copied into kafka-python's suite as `test/service.py`, which its source distribution leaves out.

The suite imports two names from it. Against an external broker only the first is used, and nothing is asked of it
but to be there; a broker of the suite's own is not to be had here, and a test that wants one says so by its error.
"""

from __future__ import annotations


class ExternalService:
    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def open(self) -> None:
        """The broker runs already."""

    def stop(self) -> None:
        """The broker is not the suite's to stop."""

    def dump_logs(self) -> None:
        """The broker's logs are its own."""


class SpawnedService:
    def __init__(self, *args: object, **options: object) -> None:
        raise RuntimeError("this suite runs against an external broker and cannot start one")
