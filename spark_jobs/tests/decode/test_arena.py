"""Records of a group are contiguous, in memory that the next group reuses."""

from __future__ import annotations

import random

import pytest

from penstock.wire.compression import Codec, compress
from penstock.wire.schema import MalformedMessage
from penstock_spark.decode import arena as arena_module
from penstock_spark.decode.arena import Arena
from penstock_spark.decode.varints import PADDING

CODECS = [codec for codec in Codec if codec]
FAR = 1 << 30


def held(arena: Arena) -> bytes:
    """Return the records; check that only zeros follow them."""
    source = arena.source()
    assert source.size == arena.size
    assert bytes(source.data[source.size : source.size + PADDING]) == bytes(PADDING)
    assert len(source.octets) == source.size + PADDING
    return bytes(source.data[: source.size])


@pytest.mark.parametrize("seed", range(20))
def test_what_is_put_stands_in_order_however_it_came(seed: int) -> None:
    rng = random.Random(seed)
    arena = Arena()
    for _ in range(4):
        wanted = bytearray()
        arena.clear()
        for _ in range(rng.randrange(12)):
            part = rng.randbytes(rng.choice((0, 1, 100, 70_000))) + b"a" * rng.choice((0, 5, 300_000))
            wanted += part
            codec = rng.choice((None, *CODECS))
            if codec is None:
                arena.put(part)
            else:
                assert arena.put_decompressed(codec, compress(codec, part), FAR) == len(part)
        assert held(arena) == wanted


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_larger_than_allowed_is_refused_and_leaves_what_was_there(codec: Codec) -> None:
    arena = Arena()
    arena.put(b"before")
    packed = compress(codec, bytes(3_000_000))
    for most in (0, 1, 5_000, 2_999_999):
        with pytest.raises(MalformedMessage, match=f"more than {most} bytes"):
            arena.put_decompressed(codec, packed, most)
        assert held(arena) == b"before"
    assert arena.put_decompressed(codec, packed, 3_000_000) == 3_000_000


def test_damage_leaves_what_was_there() -> None:
    arena = Arena()
    arena.put(b"before")
    with pytest.raises(MalformedMessage, match="damaged zstd"):
        arena.put_decompressed(Codec.ZSTD, b"no frame", FAR)
    assert held(arena) == b"before"


def test_memory_is_used_again_unless_there_is_much_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena()
    arena.put(bytes(1_000_000))
    first = arena.source().data
    arena.clear()
    arena.put(bytes(1_000_000))
    assert arena.source().data is first
    # The default is about 32 MB.
    monkeypatch.setattr(arena_module, "MAX_KEPT_BYTES", 500_000)
    arena.clear()
    assert len(arena.source().data) <= arena_module.INITIAL_BYTES
