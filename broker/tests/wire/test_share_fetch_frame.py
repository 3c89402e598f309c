"""The encoder of ShareFetch responses, against the codec."""

from __future__ import annotations

from uuid import UUID

import pytest

from penstock.wire import codec
from penstock.wire.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
)
from penstock.wire.share_fetch_frame import (
    SharedPartition,
    ShareFetchHead,
    encode_share_fetch_response,
    set_share_throttle_time,
)

TOPIC, OTHER = UUID(int=5), UUID(int=6)
ACQUIRED = [(0, 9, 1), (12, 12, 300)]


class Records:
    """Records in a file."""

    def __init__(self, size: int) -> None:
        self.size = size


def content(parts: list[object]) -> bytes:
    return b"".join(b"r" * part.size if isinstance(part, Records) else bytes(part) for part in parts)  # type: ignore[call-overload]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [1, 126, 127, 128, 20_000])
def test_a_response_is_the_one_that_the_codec_encodes(version, size):
    found = SharedPartition(3, 0, 121, records=Records(size), acquired=ACQUIRED)
    moved = SharedPartition(4, 6, 6, "moved", leader=(2, 7))
    parts = encode_share_fetch_response(ShareFetchHead(17, 0, 30_000), [(TOPIC, [found, moved]), (OTHER, [])])
    set_share_throttle_time(parts, 55)
    frame = content(parts)
    no_leader = LeaderIdAndEpoch(-1, -1)
    ranges = [AcquiredRecords(*one) for one in ACQUIRED]
    expected = ShareFetchResponse(
        throttle_time_ms=55,
        acquisition_lock_timeout_ms=30_000,
        responses=[
            ShareFetchableTopicResponse(
                TOPIC,
                [
                    PartitionData(3, 0, None, 121, None, no_leader, b"r" * size, ranges),
                    PartitionData(4, 6, None, 6, "moved", LeaderIdAndEpoch(2, 7)),
                ],
            ),
            ShareFetchableTopicResponse(OTHER, []),
        ],
    )
    assert frame[9:] == codec.encode(expected, version)
    assert frame[:9] == (len(frame) - 4).to_bytes(4, "big") + (17).to_bytes(4, "big") + b"\0"


def test_an_error_has_no_partitions():
    frame = content(encode_share_fetch_response(ShareFetchHead(1, 133)))
    assert frame[9:] == codec.encode(ShareFetchResponse(error_code=133), 2)
