"""Where processes run: all on loopback, or each in its own network namespace, so that links can be cut.

A keeper process holds each namespace and exits at the end of its input. When the test process ends, for any reason, the
kernel removes namespaces, links and rules. They have no connection to the machine's own network.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

Direction = Literal["INPUT", "OUTPUT"]
BOTH: tuple[Direction, ...] = ("INPUT", "OUTPUT")

NEEDED = (
    "Network faults need network namespaces and packet filters: run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN (in a"
    " container: --privileged), with iproute2, iptables and util-linux installed"
)


class NoNamespaces(Exception):
    """Namespaces cannot be created; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address for processes. `prefix` goes before the command of each process that runs there."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


class Loopback:
    """One address for all processes, for cells that cut no links."""

    def place(self, name: str) -> Place:
        return Place(name, "127.0.0.1")

    def close(self) -> None:
        pass

    def __enter__(self) -> Loopback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Namespaces:
    """A namespace for each name, connected by a bridge in one more; a context manager."""

    def __init__(self, names: Sequence[str]) -> None:
        self._keepers: dict[str, subprocess.Popen[str]] = {}
        self._addresses = {name: f"10.77.0.{10 + number}" for number, name in enumerate(names)}
        try:
            self._keep("bridge")
            self._run("bridge", "ip link add name hub type bridge; ip link set hub up")
            for number, name in enumerate(names):
                keeper = self._keep(name)
                link = f"link{number}"
                self._run(
                    "bridge",
                    f"ip link add name {link} type veth peer name eth0 netns {keeper.pid};"
                    f" ip link set {link} master hub up",
                )
                address = self._addresses[name]
                self._run(name, f"ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up")
        except BaseException:
            self.close()
            raise

    def _keep(self, name: str) -> subprocess.Popen[str]:
        try:
            keeper = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", "echo made && exec cat"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except FileNotFoundError as missing:
            raise NoNamespaces(f"{NEEDED}: {missing}.") from None
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "made\n":
            raise NoNamespaces(f"{NEEDED}: {keeper.communicate()[1].strip()}.")
        self._keepers[name] = keeper
        return keeper

    def _prefix(self, name: str) -> tuple[str, ...]:
        return "nsenter", f"--net=/proc/{self._keepers[name].pid}/ns/net", "--"

    def _run(self, name: str, script: str) -> str:
        """Run a shell script in a namespace; return its output. Raises `NoNamespaces` with the output on failure."""
        command = [*self._prefix(name), "sh", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            raise NoNamespaces(f"{NEEDED}: `{script}` in {name}: {done.stderr.strip()}")
        return done.stdout

    def place(self, name: str) -> Place:
        return Place(name, self._addresses[name], self._prefix(name))

    # Links

    def drop(
        self, name: str, others: Sequence[str], directions: Sequence[Direction] = BOTH, probability: float = 1.0
    ) -> None:
        """Drop packets between `name` and `others`: all, or with a probability. INPUT are packets to `name`."""
        chance = f"-m statistic --mode random --probability {probability}" if probability < 1 else ""
        rules = []
        for other in others:
            for direction in directions:
                side = "-s" if direction == "INPUT" else "-d"
                rules.append(f"iptables -w -A {direction} {side} {self._addresses[other]} {chance} -j DROP")
        self._run(name, "; ".join(rules))

    def dropped(self, name: str) -> int:
        """Return the number of packets that the rules of `name` have dropped."""
        listed = "".join(self._run(name, f"iptables -w -n -v -x -L {direction}") for direction in BOTH)
        rows = (line.split() for line in listed.splitlines())
        return sum(int(row[0]) for row in rows if len(row) > 2 and row[2] == "DROP")

    def mend(self, name: str) -> int:
        """Delete the rules of `name`; return the number of packets they dropped."""
        dropped = self.dropped(name)
        self._run(name, "iptables -w -F")
        return dropped

    def close(self) -> None:
        """Remove the namespaces; the processes in them must have ended."""
        for keeper in self._keepers.values():
            keeper.kill()
            keeper.communicate()
        self._keepers.clear()

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
