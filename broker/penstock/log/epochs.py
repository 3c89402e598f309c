"""Which leader epoch wrote from which offset on (KIP-101, KIP-279). Kept by each log, persisted in its checkpoints."""

from __future__ import annotations

from bisect import bisect_right

UNKNOWN = (-1, -1)


class EpochHistory:
    """(epoch, start offset) pairs, both rising."""

    __slots__ = ("epochs", "starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        entries = entries or []
        self.epochs = [epoch for epoch, _ in entries]
        self.starts = [start for _, start in entries]

    @property
    def latest(self) -> int:
        """-1 where nothing was written."""
        return self.epochs[-1] if self.epochs else -1

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self.epochs, self.starts, strict=True))

    def assign(self, epoch: int, offset: int) -> None:
        """Notes that `epoch` writes from `offset` on; older and equal epochs change nothing."""
        if epoch <= self.latest:
            return
        if self.starts and self.starts[-1] >= offset:  # the epochs in between wrote nothing that is left
            self.truncate(offset)
        self.epochs.append(epoch)
        self.starts.append(offset)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch up to `epoch`, the first offset that a later one wrote); (-1, -1) where unknown."""
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return epoch, log_end_offset
        later = bisect_right(self.epochs, epoch)
        return (self.epochs[later - 1] if later else epoch), self.starts[later]

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 where unknown."""
        at = bisect_right(self.starts, offset)
        return self.epochs[at - 1] if at else -1

    def truncate(self, end_offset: int) -> None:
        """Forgets epochs that begin at `end_offset` or behind it."""
        while self.starts and self.starts[-1] >= end_offset:
            del self.epochs[-1], self.starts[-1]

    def advance(self, start_offset: int) -> None:
        """Forgets epochs that end before `start_offset`; the one that holds it begins there."""
        at = bisect_right(self.starts, start_offset) - 1
        if at >= 0:
            del self.epochs[:at], self.starts[:at]
            self.starts[0] = start_offset
