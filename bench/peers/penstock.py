"""Penstock, started as a user would: ``penstock up``."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import Peer

NEVER = str(2**63 - 1)
DEFAULT_COMMAND = (
    f"{shlex.quote(str(Path(sys.executable).parent / 'penstock'))} up --data {{data}} --port {{port}} --http-port 0"
)


class Penstock(Peer):
    """``command`` is a template with {data} and {port}, so that another build can be measured."""

    label = "penstock"
    durable_topic: ClassVar[dict[str, str]] = {}  # durable is the default
    unflushed_topic: ClassVar[dict[str, str]] = {"flush.messages": NEVER, "flush.ms": NEVER}

    def __init__(self, command: str = DEFAULT_COMMAND) -> None:
        self._template = command

    def version(self) -> str:
        return f"Penstock {version('penstock')}"

    def command(self, data_dir: Path, port: int) -> list[str]:
        return [part.format(data=data_dir, port=port) for part in shlex.split(self._template)]
