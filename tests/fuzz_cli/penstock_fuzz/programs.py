"""Runs both command lines in this process, as their scripts do, and says how each call ended."""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("TYPER_USE_RICH", "0")

import typer

from penstock.cli import up as up_module
from penstock.cli.local_cluster import command as local_cluster
from penstock.cli.process_exit import run_to_the_end
from penstock.cli.root import app
from penstock.config.options import UpOptions
from penstock.node.broker import BrokerNode
from penstock.node.environment import SystemEnvironment
from penstock.node.settings import StartError, etcd_of
from penstock_spark.cli.root import command as spark_command

DEAD = "127.0.0.1:1"
"""Nothing listens there."""
CODES = frozenset({0, 1, 2, 3, 4, 5, 130})
STARTS = frozenset({("demo",), ("cluster", "adopt"), ("cluster", "recover")})
"""Commands of which the arguments are parsed, and nothing is started: they run for long."""
SPARK_STARTS = frozenset({("run",), ("demo",), ("java",)})


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: object
    out: str
    err: str

    def check(self) -> None:
        """Fails unless the call ended as the documentation says."""
        assert self.code in CODES, self
        assert "Traceback" not in self.err, self.err
        assert self.code == 0 or self.err.strip() or self.out.strip(), "a failure without a message"


def check_node(options: UpOptions) -> None:
    """What the process of a broker does before it opens anything: the checks of `penstock.node.process.run`."""
    try:
        BrokerNode(options, os.environ, SystemEnvironment(etcd_of(options)))
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(0)


@contextmanager
def streams() -> Any:
    """Standard streams in files, of the encoding and error handling that a process has; nothing comes in."""
    before = sys.stdin, sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        written = io.TextIOWrapper(out, encoding="utf-8")
        complained = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace")
        sys.stdin, sys.stdout, sys.stderr = nothing, written, complained
        try:
            yield written, complained
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


@contextmanager
def environment(variables: Mapping[str, str]) -> Any:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Programs:
    """`penstock` and `penstock-spark`. A broker that would be started is checked as its own process checks it."""

    def __init__(self) -> None:
        self.penstock = typer.main.get_command(app)
        self.spark = spark_command()
        self._before = up_module.exec_broker, local_cluster.run
        up_module.exec_broker = check_node  # type: ignore[assignment]
        local_cluster.run = lambda cluster: 0

    def close(self) -> None:
        """Has brokers be started again."""
        up_module.exec_broker, local_cluster.run = self._before

    def run(self, path: Sequence[str], arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Ended:
        """`penstock PATH ARGUMENTS`."""
        with environment({"PENSTOCK_BOOTSTRAP": DEAD, **(variables or {})}):
            return self._end(self.penstock, "penstock", path, arguments, tuple(path) in STARTS)

    def run_spark(self, path: Sequence[str], arguments: Sequence[str]) -> Ended:
        """`penstock-spark PATH ARGUMENTS`."""
        return self._end(self.spark, "penstock-spark", path, arguments, tuple(path) in SPARK_STARTS)

    def _end(self, program: Any, name: str, path: Sequence[str], arguments: Sequence[str], parse_only: bool) -> Ended:
        arguments = [as_passed(argument) for argument in arguments]
        call: Callable[[], object] = partial(program, args=[*path, *arguments], prog_name=name)
        if parse_only:
            command = program
            for part in path:
                command = command.get_command(None, part)
            call = partial(parse, command, arguments)
        with streams() as (out, err):
            try:
                run_to_the_end(call)
            except SystemExit as e:
                code = 0 if e.code is None else int(e.code) if isinstance(e.code, int) else e.code
            return Ended(code, text_of(out), text_of(err))


def as_passed(argument: str) -> str:
    """An argument as a process gets it from the system: bytes, of which Python makes text."""
    try:
        return os.fsdecode(os.fsencode(argument))
    except UnicodeEncodeError:
        return os.fsdecode(argument.encode("utf-8", "surrogatepass"))


def text_of(stream: io.TextIOWrapper) -> str:
    """What was written; empty where the program has discarded its output."""
    stream.flush()
    about = os.fstat(stream.fileno())
    return os.pread(stream.fileno(), about.st_size, 0).decode(errors="replace") if stat.S_ISREG(about.st_mode) else ""


def parse(command: Any, arguments: list[str]) -> None:
    """Parses and checks a command's arguments without calling it, with the exit codes of a call."""
    try:
        command.make_context("command", arguments).close()
    except SystemExit:
        raise
    except Exception as e:
        code = getattr(e, "exit_code", None)
        if code is None:
            raise
        if code:
            print(f"error: {e}", file=sys.stderr)
        raise SystemExit(code) from None
