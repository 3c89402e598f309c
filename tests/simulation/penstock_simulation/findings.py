"""Violations of guarantees, as the checks return them."""

from __future__ import annotations

from typing import NamedTuple

from penstock_simulation.history import Partition


class Finding(NamedTuple):
    """A violation; `kind` names the guarantee."""

    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def place(partition: Partition, offset: int | None = None) -> str:
    """Return the name of a partition, or of an offset in it."""
    name = f"{partition[0]}-{partition[1]}"
    return name if offset is None else f"{name} offset {offset}"
