"""Runs both command lines in this process, as their scripts do, and reports the outcome of each call."""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
"""An address without a listener."""
CODES = frozenset({0, 1, 2, 3, 4, 5, 130})
STARTS = frozenset({("demo",), ("cluster", "adopt"), ("cluster", "recover")})
"""Commands whose arguments are parsed but which are not run, because they run for long."""
SPARK_STARTS = frozenset({("run",), ("demo",), ("java",)})


@dataclass(frozen=True)
class Ended:
    """The outcome of a call."""

    code: object
    out: str
    err: str

    def check(self) -> None:
        """Raise AssertionError unless the outcome is a documented one."""
        assert self.code in CODES, self
        assert "Traceback" not in self.err, self.err
        assert self.code == 0 or self.err.strip() or self.out.strip(), "a failure without a message"


def check_node(options: UpOptions) -> None:
    """Check the options as a broker's process does before it opens files: `penstock.node.process.run`."""
    try:
        BrokerNode(options, os.environ, SystemEnvironment(etcd_of(options)))
    except StartError as e:
        print(f"penstock up: {e}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(0)


@contextmanager
def streams() -> Any:
    """Replace the standard streams by files with the encoding and error handling of a process; the input is empty."""
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
    """`penstock` and `penstock-spark`. A broker is not started; its options are checked as its own process does."""

    def __init__(self) -> None:
        self.penstock = typer.main.get_command(app)
        self.spark = spark_command()
        self._before = up_module.exec_broker, up_module.make_secure, local_cluster.run
        self._folder = tempfile.TemporaryDirectory()
        make_secure = up_module.make_secure
        up_module.exec_broker = check_node  # type: ignore[assignment]
        # Drawn names of data directories would be created in the current directory.
        up_module.make_secure = lambda options: make_secure(replace(options, data_dir=self._folder.name))
        local_cluster.run = lambda cluster: 0

    def close(self) -> None:
        """Restore the functions that start brokers."""
        up_module.exec_broker, up_module.make_secure, local_cluster.run = self._before
        self._folder.cleanup()

    def run(self, path: Sequence[str], arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> Ended:
        """Run `penstock PATH ARGUMENTS`."""
        with environment({"PENSTOCK_BOOTSTRAP": DEAD, **(variables or {})}):
            return self._end(self.penstock, "penstock", path, arguments, tuple(path) in STARTS)

    def run_spark(self, path: Sequence[str], arguments: Sequence[str]) -> Ended:
        """Run `penstock-spark PATH ARGUMENTS`."""
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
    """Return an argument as a process receives it: bytes that Python decodes."""
    try:
        return os.fsdecode(os.fsencode(argument))
    except UnicodeEncodeError:
        return os.fsdecode(argument.encode("utf-8", "surrogatepass"))


def text_of(stream: io.TextIOWrapper) -> str:
    """Return the output; empty if the program has discarded it."""
    stream.flush()
    about = os.fstat(stream.fileno())
    return os.pread(stream.fileno(), about.st_size, 0).decode(errors="replace") if stat.S_ISREG(about.st_mode) else ""


def parse(command: Any, arguments: list[str]) -> None:
    """Parse and check a command's arguments without calling it, with the exit codes of a call."""
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
