"""Keeps long-lived objects of a Spark Python worker out of garbage collections. Called by `source` and `sink` in tasks.

After each task Spark's workers run a full garbage collection, which visits all objects including modules. That takes
about 40 ms, longer than a short task.
"""

from __future__ import annotations

import gc

_has_had_a_task = _is_frozen = False


def freeze_loaded_objects() -> None:
    """Freeze the existing objects at the second task of a process. Not at the first: the process may run no other, and
    garbage of earlier work is collected after it."""
    global _has_had_a_task, _is_frozen
    if _has_had_a_task and not _is_frozen:
        gc.freeze()
        _is_frozen = True
    _has_had_a_task = True
