"""The comparison reports replicas that differ on disk; a missing end counts only below the high watermark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from struct import pack
from uuid import UUID

import pytest
from penstock_chaos.replicas import differing

TOPIC = UUID(int=7)


def batch(base: int, records: int, content: bytes = b"content") -> bytes:
    """Return a batch with the fields that the comparison reads: base offset, length, last offset delta at byte 23."""
    rest = bytes(11) + pack(">i", records - 1) + content
    return pack(">qi", base, len(rest)) + rest


SOUND = [batch(0, 3), batch(3, 2), batch(5, 1)]


def store(directory: Path, batches: Sequence[bytes]) -> Path:
    log = directory / f"{TOPIC}-0"
    log.mkdir(parents=True)
    half = len(batches) // 2
    (log / f"{0:020}.log").write_bytes(b"".join(batches[:half]))
    (log / f"{3:020}.log").write_bytes(b"".join(batches[half:]))
    return directory


def found(tmp_path: Path, second: Sequence[bytes], high_watermark: int) -> list[str]:
    data = {1: store(tmp_path / "1", SOUND), 2: store(tmp_path / "2", second)}
    return [f.message for f in differing(TOPIC, "orders", {0: high_watermark}, data)]


def test_equal_replicas_have_no_findings(tmp_path: Path) -> None:
    assert found(tmp_path, SOUND, 6) == []


def test_a_replica_may_lack_what_is_above_the_high_watermark(tmp_path: Path) -> None:
    assert found(tmp_path, SOUND[:2], 5) == []


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(SOUND[:2], id="its end is missing"),
        pytest.param([SOUND[0], batch(3, 2, b"changed"), SOUND[2]], id="other bytes"),
        pytest.param([batch(0, 2), batch(2, 3), SOUND[2]], id="other batches"),
        pytest.param([*SOUND[:2], SOUND[2][:-1]], id="torn"),
        pytest.param([], id="nothing"),
    ],
)
def test_a_replica_that_differs_below_it_is_found(tmp_path: Path, second: Sequence[bytes]) -> None:
    assert found(tmp_path, second, 6)
