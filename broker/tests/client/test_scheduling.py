"""Headers that schedule and cancel records."""

from __future__ import annotations

import pytest

from penstock.client import cancel_scheduled, deliver_after, deliver_at


def test_times_are_sent_as_decimal_digits() -> None:
    assert deliver_at(1_800_000_000_000) == ("penstock-deliver-at", b"1800000000000")
    assert deliver_after(0) == ("penstock-deliver-after-ms", b"0")
    assert cancel_scheduled() == ("penstock-cancel-scheduled", None)


def test_a_negative_time_is_refused() -> None:
    with pytest.raises(ValueError, match="invalid time"):
        deliver_after(-1)
    with pytest.raises(ValueError, match="invalid time"):
        deliver_at(-1)
