"""What stands in a column of the table: a recipe (Contender), and what runs from it (Service).

A service is one broker or a cluster of them; suites that ask for nothing else take either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class BrokerFailed(Exception):
    """A broker did not start or ended by itself; the message holds the end of its log."""


class Contender(ABC):
    """A kind of service, with its default settings."""

    label: str
    creates_topics = True  # whether CreateTopics works; otherwise asking for a topic creates it
    replicas = 1  # of each partition
    durable_topic: ClassVar[dict[str, str]]  # settings that make acks=all wait for the disk
    unflushed_topic: ClassVar[dict[str, str]]  # settings that leave flushing to the operating system

    @abstractmethod
    def version(self) -> str:
        """What to call it in the report."""

    @abstractmethod
    def service(self, cores: set[int], work_dir: Path) -> Service:
        """Prepared in a directory of its own below ``work_dir``, pinned to ``cores``, not yet started."""


class Service(ABC):
    """Running from ``start`` to ``stop``, and again on the same data, until ``remove``."""

    @property
    @abstractmethod
    def contender(self) -> Contender: ...

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """``host:port`` of each broker."""

    @property
    def address(self) -> str:
        """The bootstrap servers of clients."""
        return ",".join(self.addresses)

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """All processes whose CPU time and memory the service costs, without their children."""

    @abstractmethod
    def spawn(self) -> None:
        """Starts the brokers and returns at once."""

    @abstractmethod
    def start(self) -> None:
        """Starts it and waits until it serves."""

    @abstractmethod
    def check(self) -> None:
        """Raises BrokerFailed if a process has ended by itself."""

    @abstractmethod
    def failure(self, what: str) -> str:
        """A message that holds the end of the log."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it in good order; the data stays."""

    @abstractmethod
    def remove(self) -> None:
        """Ends it for good and removes its directory."""
