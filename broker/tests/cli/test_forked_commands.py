"""The process that forks commands for other tests of the command line."""

from __future__ import annotations

import os
import subprocess

import pytest
from forked_commands import ForkedCommands

pytestmark = pytest.mark.integration


def test_a_command_that_takes_too_long_is_killed_and_the_next_one_runs(
    commands: ForkedCommands, bootstrap: str, topic: str
) -> None:
    environment = {**os.environ, "PENSTOCK_BOOTSTRAP": bootstrap}
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run(["consume", topic, "--follow"], b"", environment, 0.1)
    code, output, _ = commands.run(["topic", "list"], b"", environment, 60)
    assert (code, topic in output.decode().split()) == (0, True)


def test_a_command_has_the_environment_and_the_arguments_that_it_is_given(
    commands: ForkedCommands, bootstrap: str, topic: str
) -> None:
    codes = []
    for address in ("127.0.0.1:1", bootstrap):
        environment = {**os.environ, "PENSTOCK_BOOTSTRAP": address}
        codes.append(commands.run(["topic", "describe", topic], b"", environment, 60)[0])
    assert codes == [5, 0]
