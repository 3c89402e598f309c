"""Load processes, which work against the broker until the test stops them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock_crash.broker import DEADLINE_S, POLL_S
from penstock_crash.journal import Entry, Journal

FINISH_S = 60.0
"""Time limit for a load to have all its records acknowledged."""


class Load:
    """One process. `module` is the name of a module of this package, `options` the arguments of its `main`."""

    def __init__(self, home: Path, module: str, **options: Any) -> None:
        self.name = module
        self.journal = Journal(home / f"{module}-{options.get('name', '')}.journal")
        self._errors = home / f"{module}.log"
        options["journal"] = str(self.journal.path)
        code = f"from penstock_crash.{module} import main; main(__import__('json').loads(__import__('sys').argv[1]))"
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=Path(__file__).parent.parent,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        code = self._process.poll()
        assert code is None, f"the load {self.name} ended with {code}:\n{self.tail()}"

    def read(self) -> list[Entry]:
        new = self.journal.read()
        broken = [entry for entry in new if entry[0] == "broken"]
        assert not broken, f"the load {self.name} says: {broken}"
        return new

    def wait_for(self, kind: str, count: int) -> None:
        """Wait until `count` more entries of a kind have been written."""
        deadline = time.monotonic() + DEADLINE_S
        while count > 0:
            self.check_alive()
            assert time.monotonic() < deadline, f"the load {self.name} makes no progress: {count} x {kind} missing"
            time.sleep(POLL_S)
            count -= sum(entry[0] == kind for entry in self.read())

    def finish(self) -> None:
        """Send SIGTERM and wait until the load has completed its operations."""
        self.check_alive()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(FINISH_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the load {self.name} cannot finish:\n{self.tail()}") from None
        assert code == 0, f"the load {self.name} ended with {code}:\n{self.tail()}"
        self.read()

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        return self._errors.read_text(errors="replace")[-4000:]
