"""Leader epoch history: the start offset of each epoch (KIP-101, KIP-279). Checkpoints persist it."""

from __future__ import annotations

from bisect import bisect_right

UNKNOWN = (-1, -1)


class EpochHistory:
    """(epoch, start offset) pairs, both increasing."""

    __slots__ = ("epochs", "starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        entries = entries or []
        self.epochs = [epoch for epoch, _ in entries]
        self.starts = [start for _, start in entries]

    @property
    def latest(self) -> int:
        """The latest epoch, -1 if the log has no records."""
        return self.epochs[-1] if self.epochs else -1

    def entries(self) -> list[tuple[int, int]]:
        """Return the (epoch, start offset) pairs, for a checkpoint."""
        return list(zip(self.epochs, self.starts, strict=True))

    def assign(self, epoch: int, offset: int) -> None:
        """Record that `epoch` starts at `offset`; ignored unless it is newer than the latest."""
        if epoch <= self.latest:
            return
        if self.starts and self.starts[-1] >= offset:  # the epochs in between have no records left
            self.truncate(offset)
        self.epochs.append(epoch)
        self.starts.append(offset)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (largest epoch up to `epoch`, first offset of the next epoch); (-1, -1) if unknown."""
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN
        if epoch == self.latest:
            return epoch, log_end_offset
        later = bisect_right(self.epochs, epoch)
        return (self.epochs[later - 1] if later else epoch), self.starts[later]

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of `offset`, -1 if unknown."""
        at = bisect_right(self.starts, offset)
        return self.epochs[at - 1] if at else -1

    def truncate(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`."""
        while self.starts and self.starts[-1] >= end_offset:
            del self.epochs[-1], self.starts[-1]

    def advance(self, start_offset: int) -> None:
        """Remove epochs that end before `start_offset`; the epoch that contains it starts there."""
        at = bisect_right(self.starts, start_offset) - 1
        if at >= 0:
            del self.epochs[:at], self.starts[:at]
            self.starts[0] = start_offset
