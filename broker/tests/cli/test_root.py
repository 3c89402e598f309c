"""The root command: help, errors, completion, and the modules that `up` does not import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cli.root import COMMANDS

pytestmark = pytest.mark.integration

Cli = Callable[..., Any]


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_every_command_has_a_help_with_examples(alone: Cli, command: list[str]) -> None:
    outcome = alone(*command, "--help")
    assert outcome.code == 0
    assert "Usage: penstock" in outcome.out


def test_lists_in_the_help_have_a_line_for_each_item(alone: Cli) -> None:
    lines = [line.strip() for line in alone("--help").out.splitlines()]
    assert {"- `penstock up`", "- `penstock consume greetings`"} <= set(lines)


def test_the_help_names_the_exit_codes(alone: Cli) -> None:
    assert "Exit codes" in alone("--help").out


def test_an_unreachable_broker_ends_with_code_5_and_the_cure(alone: Cli) -> None:
    outcome = alone("topic", "list")
    assert outcome.code == 5
    assert "127.0.0.1:1" in outcome.err
    assert "penstock up" in outcome.err
    assert "Traceback" not in outcome.err


def test_an_address_that_is_none_is_explained(alone: Cli) -> None:
    outcome = alone("status", "--bootstrap", "here:there")
    assert (outcome.code, 'use "host:port"' in " ".join(outcome.err.split())) == (2, True)


def printing_to(out: int, *command: str, buffered: bool) -> tuple[int, str]:
    """Return exit code and standard error. Buffered output, the default, is written when the program exits."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    unbuffered = [] if buffered else ["-u"]
    line = [sys.executable, *unbuffered, "-m", "penstock.cli", *command]
    done = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, env=environment)
    return done.returncode, done.stderr


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("command", [["--help"], ["topic", "--help"], ["up", "--help"], ["completion", "bash"]])
def test_whoever_has_read_enough_of_the_help_ends_it_without_an_error(command: list[str], buffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = printing_to(writing, *command, buffered=buffered)
    finally:
        os.close(writing)
    assert ended == (0, "")


@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written_is_one_sentence(buffered: bool) -> None:
    with open("/dev/full", "wb") as full:
        code, said = printing_to(full.fileno(), "completion", "bash", buffered=buffered)
    assert (code, said) == (1, "error: [Errno 28] No space left on device\n")


def test_a_failure_stays_one_when_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, said = printing_to(writing, "topic", "list", "--bootstrap", "127.0.0.1:1", buffered=True)
    finally:
        os.close(writing)
    assert code == 5
    assert said.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(alone: Cli, shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in alone("completion", shell).out


def test_completion_knows_the_commands() -> None:
    environment = {
        **os.environ,
        "_PENSTOCK_COMPLETE": "complete_bash",
        "COMP_WORDS": "penstock group re",
        "COMP_CWORD": "2",
    }
    done = subprocess.run([sys.executable, "-m", "penstock.cli"], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["reset-offsets"]


def test_up_imports_neither_rich_nor_the_client() -> None:
    code = (
        "import sys, penstock.cli.root as root, penstock.cli.up, penstock.node.process;"
        "print([m for m in sys.modules if m.split('.')[0] == 'rich' or m.startswith('penstock.client')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--set", "num.partitions"], "NAME=VALUE"),
        (["--port", "70000"], "--port"),
        (["--log-level", "loud"], "loud"),
    ],
)
def test_up_refuses_flags_that_make_no_sense(alone: Cli, arguments: list[str], says: str) -> None:
    outcome = alone("up", *arguments)
    assert (outcome.code, says in outcome.err) == (2, True), outcome
