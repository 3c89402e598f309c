"""Sites where mutations are made, and where not."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from penstock_mutants.sites import sample

SOURCE = '''"""A module."""

from logging import getLogger

log = getLogger()
LIMIT = 500


class Counter:
    """Counts."""

    __slots__ = ("count",)

    def add(self, amount: int = 1) -> bool:
        """Add."""
        assert amount >= 0, f"an amount of {amount + 1}"
        log.info("added %d", amount + 1)
        if self.count < LIMIT:
            self.count += amount
        return self.count == LIMIT
'''


def test_logic_is_mutated_and_nothing_else() -> None:
    made = sample({"counter.py": SOURCE}, 1000, "1")
    assert {mutation.line for mutation in made} == {18, 19, 20}
    for mutation in made:
        assert mutation.source != SOURCE
        compile(mutation.source, "counter.py", "exec")


def test_a_seed_repeats_its_sample() -> None:
    assert sample({"counter.py": SOURCE}, 2, "7") == sample({"counter.py": SOURCE}, 2, "7")
    assert sample({"counter.py": SOURCE}, 2, "7") != sample({"counter.py": SOURCE}, 2, "8")
