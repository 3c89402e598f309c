"""A column of the results table: a recipe (Contender), and the running service (Service).

A service is one broker or a cluster; most suites accept either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar


class BrokerFailed(Exception):
    """A broker did not start or ended unexpectedly; the message has the end of its log."""


class Contender(ABC):
    """A kind of service, with its default settings."""

    label: str
    creates_topics = True  # whether CreateTopics works; otherwise a Metadata request creates the topic
    replicas = 1  # replicas of each partition
    durable_topic: ClassVar[dict[str, str]]  # settings with which acks=all waits for the disk
    unflushed_topic: ClassVar[dict[str, str]]  # settings that leave flushing to the operating system

    @abstractmethod
    def version(self) -> str:
        """Return the name and version for the report."""

    @abstractmethod
    def service(self, cores: set[int], work_dir: Path) -> Service:
        """Prepare a service in a new directory below `work_dir`, pinned to `cores`, without starting it."""


class Service(ABC):
    """A service that runs from `start` to `stop`, repeatedly on the same data, until `remove`."""

    @property
    @abstractmethod
    def contender(self) -> Contender: ...

    @property
    @abstractmethod
    def addresses(self) -> list[str]:
        """`host:port` of each broker."""

    @property
    def address(self) -> str:
        """Bootstrap servers for clients."""
        return ",".join(self.addresses)

    @property
    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """All processes whose CPU time and memory count, without their children."""

    @abstractmethod
    def spawn(self) -> None:
        """Start the brokers and return at once."""

    @abstractmethod
    def start(self) -> None:
        """Start the service and wait until it serves."""

    @abstractmethod
    def check(self) -> None:
        """Raise BrokerFailed if a process has ended unexpectedly."""

    @abstractmethod
    def failure(self, what: str) -> str:
        """Return a message with the end of the log."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the service cleanly; the data stays."""

    @abstractmethod
    def remove(self) -> None:
        """Stop the service permanently and remove its directory."""
