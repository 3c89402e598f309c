"""A member of a consumer group in a separate process, so that it can be killed without leaving its group."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

from penstock_e2e.drivers import kcat
from penstock_e2e.model import DEADLINE_S, MemberSpec, Message, Partition, eventually

_REBALANCE = re.compile(r"% Group \S+ rebalanced \(memberid \S*\): (assigned|revoked): ?(.*)")
_PARTITION = re.compile(r"(\S+) \[(\d+)\]")


class Member:
    """The parent's view of a member: the events that the process has reported, and control of the process.

    `records` are those that the member handled, in order; `assignment` follows its rebalances and is None until the
    first one; `rebalances` counts assignments and revocations.
    """

    def __init__(self, spec: MemberSpec) -> None:
        self.spec = spec
        self.records: list[Message] = []
        self.assignment: frozenset[Partition] | None = None
        self.revoked: list[frozenset[Partition]] = []
        self.rebalances = 0
        self.history: list[tuple[str, list[Partition]]] = []
        self.holding = False
        self._errors: list[str] = []
        self._readers: list[threading.Thread] = []
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        handlers: tuple[Callable[[str], None], Callable[[str], None]]
        if self.spec.client == "kcat":
            command, handlers = kcat.member_command(self.spec), (self._kcat_out, self._kcat_err)
        else:
            specification = json.dumps(dataclasses.asdict(self.spec))
            command = [sys.executable, "-m", "penstock_e2e.member_main", specification]
            handlers = (self._event, self._errors.append)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, env=environment
        )
        assert process.stdout is not None
        assert process.stderr is not None
        for stream, handler in zip((process.stdout, process.stderr), handlers, strict=True):
            thread = threading.Thread(target=_read, args=(stream, handler), daemon=True)
            thread.start()
            self._readers.append(thread)
        return process

    def _event(self, line: str) -> None:
        event = json.loads(line)
        match event:
            case {"assigned": partitions}:
                self._assigned(frozenset(Partition(*p) for p in partitions))
            case {"revoked": partitions}:
                self._revoked(frozenset(Partition(*p) for p in partitions))
            case {"record": [topic, partition, offset, key, value]}:
                self.records.append(Message(topic, partition, offset, key and key.encode(), value and value.encode()))
            case {"holding": True}:
                self.holding = True
            case _:
                raise AssertionError(f"a member said {line!r}")

    def _kcat_out(self, line: str) -> None:
        self.records.append(kcat.parse_message(line))

    def _kcat_err(self, line: str) -> None:
        found = _REBALANCE.search(line)
        if found is None:
            self._errors.append(line)
            return
        partitions = frozenset(Partition(topic, int(index)) for topic, index in _PARTITION.findall(found[2]))
        (self._assigned if found[1] == "assigned" else self._revoked)(partitions)

    def _assigned(self, partitions: frozenset[Partition]) -> None:
        self.history.append(("assigned", sorted(partitions)))
        self.rebalances += 1
        self.assignment = (self.assignment or frozenset()) | partitions

    def _revoked(self, partitions: frozenset[Partition]) -> None:
        self.history.append(("revoked", sorted(partitions)))
        if partitions:
            self.rebalances += 1
            self.revoked.append(partitions)
            self.assignment = (self.assignment or frozenset()) - partitions

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def wait(self, what: str, condition: Callable[[Member], Any]) -> None:
        def check() -> bool:
            code = self._process.poll()
            assert code is None, f"the member ended with {code} before {what}: {''.join(self._errors)}"
            return bool(condition(self))

        try:
            eventually(what, check)
        except AssertionError as error:
            error.add_note(f"{len(self.records)} records; {self.history}; said {self._errors}")
            raise

    def kill(self) -> None:
        """Send SIGKILL: the broker detects it by the session timeout or not at all."""
        self._end(signal.SIGKILL)

    def leave(self) -> None:
        """Send SIGTERM: the client closes its consumer and, unless its membership is static, leaves the group."""
        code = self._end(signal.SIGTERM)
        assert code == 0, f"a leaving member ended with {code}: {''.join(self._errors)}"

    def _end(self, how: signal.Signals) -> int:
        if self._process.poll() is None:
            self._process.send_signal(how)
        code = self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        return code

    def clean_up(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.kill()


class StartMember(Protocol):
    def __call__(self, group: str, topic: str, **changes: Any) -> Member: ...


def _read(stream: IO[str], handler: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            handler(line)


def _python_path() -> Iterator[str]:
    yield str(Path(__file__).parents[1])
    if inherited := os.environ.get("PYTHONPATH"):
        yield inherited
