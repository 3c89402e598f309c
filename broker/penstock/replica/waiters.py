"""What waits for a leader: acknowledgements for the high watermark, and followers for new batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class CommitWaiter(NamedTuple):
    """A callback for when the high watermark reaches an offset."""

    required_offset: int
    callback: Callable[[int], None]


class FetchListener(Protocol):
    """A follower's pending fetch of a partition."""

    def on_append(self, urgent: bool) -> None:
        """Handle new data. `urgent` is False if only the high watermark or the log start has moved."""
