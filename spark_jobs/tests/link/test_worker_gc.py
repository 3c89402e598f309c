"""Modules and objects that a worker process has loaded are exempt from garbage collection from its second task on."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

CHILD = """
import gc
from penstock_spark.link.worker_gc import freeze_loaded_objects

counts, later = [], []
for task in range(3):
    freeze_loaded_objects()
    counts.append(gc.get_freeze_count())
    garbage = type("Garbage", (), {})()
    garbage.itself = garbage
    died = []
    import weakref
    weakref.finalize(garbage, died.append, task)
    del garbage
    gc.collect()
    assert died == [task], "garbage of a task is collected behind it"
    later += [[] for _ in range(5000)]
print(*counts)
"""


def test_what_stays_is_frozen_once_and_garbage_is_still_found() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    first, second, third = map(int, done.stdout.split())
    assert first == 0, "the process may have no other task"
    assert second > 1000
    assert third < second + 1000, "what came later is not frozen"
