"""One Java process for each client release: it reads names of scenarios, and writes a result line for each."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_java.build import program

LIMIT_S = 115.0
"""Time limit for an answer. The Java side gives up on a scenario earlier and reports where it hangs."""
FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class Runner:
    def __init__(self, class_path: str, bootstrap: str, errors: Path, flags: Sequence[str] = ()) -> None:
        self._command = [program("java"), *FLAGS, *flags, "-cp", class_path, "scenarios.Scenarios", bootstrap]
        self._errors = errors
        self._process: subprocess.Popen[str] | None = None

    def run(self, scenario: str, properties: Path | None = None) -> dict[str, Any]:
        """Return the outcome: `passed`, `failure` (a stack trace or None), unexpected `warnings`.

        `properties` are settings of all clients of the scenario.
        """
        scenario = f"{scenario} {properties}" if properties else scenario
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(scenario + "\n")
        process.stdin.flush()
        late = threading.Timer(LIMIT_S, process.kill)
        late.start()
        try:
            line = process.stdout.readline()
        finally:
            late.cancel()
        assert line, f"the Java process ended without an outcome of {scenario}:\n{self._errors.read_text()[-4000:]}"
        outcome: dict[str, Any] = json.loads(line)
        assert outcome["scenario"] == scenario, f"an answer to another question: {outcome}"
        return outcome

    def _running(self) -> subprocess.Popen[str]:
        """Return the process; after a scenario that hung, a new one."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            with self._errors.open("a") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
        return self._process

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            process.kill()
