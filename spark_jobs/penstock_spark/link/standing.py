"""What stays in a Python worker of Spark for as long as the process lives. `source` and `sink` tell it of each task.

Behind each task Spark's workers collect garbage, and for that look at every object there is, modules and all: some
40 ms, which a short task does not take itself.
"""

from __future__ import annotations

import gc

_has_had_a_task = _is_frozen = False


def begin_task() -> None:
    """From the second task of a process on, what is there is taken out of the collector's sight. Not at the first: the
    process may have no other, and garbage of what ran before is collected behind it."""
    global _has_had_a_task, _is_frozen
    if _has_had_a_task and not _is_frozen:
        gc.freeze()
        _is_frozen = True
    _has_had_a_task = True
