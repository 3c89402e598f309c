"""Workloads as used by cells: client processes, each with a journal, that work until they are stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from penstock_crash.journal import Entry, Journal

from penstock_chaos.places import Place

POLL_S = 0.1
TESTS = Path(__file__).parents[2]
FOLDERS = [str(TESTS / name) for name in ("chaos", "simulation", "crash")]


def is_done(entry: Entry) -> bool:
    """Whether an entry records a successful operation."""
    if entry[0] == "commit":
        return entry[5] is not None
    return bool(entry[0] != "end" or entry[2] == "committed")


class Workload:
    """One process. `module` is a module of `penstock_chaos.loads`; `progress` the kind of entry that shows its work."""

    def __init__(self, home: Path, place: Place, module: str, name: str, progress: str, **options: Any) -> None:
        self.name, self.progress = name, progress
        self.topic: str = options.get("topic", "")
        """The topic that it writes or reads."""
        self.reads_committed = module == "follow"
        self.journal = Journal(home / f"{name}.journal")
        self.done: Counter[str] = Counter()
        """Entries by kind; commits and transactions count only if acknowledged."""
        self._log = home / f"{name}.log"
        options |= {"journal": str(self.journal.path), "name": name}
        code = (
            f"import json, sys; sys.path[:0] = {FOLDERS!r}; "
            f"from penstock_chaos.loads.{module} import main; main(json.loads(sys.argv[1]))"
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*place.prefix, sys.executable, "-c", code, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def read(self) -> list[Entry]:
        """Return the entries written since the last call."""
        new = self.journal.read()
        self.done.update(entry[0] for entry in new if is_done(entry))
        return new

    def check_alive(self) -> None:
        code = self._process.poll()
        assert code is None, f"{self.name} ended by itself with {code}:\n{self.tail()}"

    def ask_to_finish(self) -> None:
        self.check_alive()
        self._process.send_signal(signal.SIGTERM)

    def wait_finished(self, deadline: float) -> None:
        """Wait for the exit until a `time.monotonic()` time. Raises AssertionError with the end of its log."""
        try:
            code = self._process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} cannot finish what it has begun:\n{self.tail()}") from None
        assert code == 0, f"{self.name} ended with {code}:\n{self.tail()}"
        self.read()

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def tail(self) -> str:
        notes = "\n".join(str(entry) for entry in list(self.journal.of("note"))[-5:])
        return f"{self._log.read_text(errors='replace')[-3000:]}\n{notes}"
