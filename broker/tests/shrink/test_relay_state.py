"""The relay's state without I/O: sequences, epochs, and which batches are relayed."""

from __future__ import annotations

from replica_kit import batch_of

from penstock.shrink.relay_state import (
    MAX_PRODUCER_EPOCH,
    SEQUENCE_MODULUS,
    RelayBatch,
    advanced,
    relayed_batch,
    restarted,
    select_batches,
    skipped_to,
    start_relay,
)
from penstock.state.shrink_records import RelayRecord
from penstock.wire.batch import CONTROL, TRANSACTIONAL, checksum, read_header, stamp
from penstock.wire.compression import Codec
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.records import iterate_records

STATE = RelayRecord(seal=10, target=1, position=20, producer_id=7, producer_epoch=3, sequence=5)


def relay_batch(offset: int, count: int = 1, producer: tuple[int, int, int] = (-1, -1, -1), **more: int) -> RelayBatch:
    batch = batch_of(count, producer=producer, **more)
    stamp(batch, 0, offset, 0)
    return RelayBatch(read_header(batch), bytes(batch))


def transactional(offset: int, producer_id: int) -> RelayBatch:
    return relay_batch(offset, producer=(producer_id, 0, 0), attributes=TRANSACTIONAL)


def marker(offset: int, producer_id: int) -> RelayBatch:
    batch = build_marker(Marker(producer_id, 0, False, 0), 1)
    stamp(batch, 0, offset, 0)
    return RelayBatch(read_header(batch), bytes(batch))


def offsets(batches: list[RelayBatch], position: int, aborted: list[tuple[int, int]]) -> list[int]:
    return [batch.header.base_offset for batch in select_batches(batches, position, aborted)]


def test_a_relayed_batch_has_its_records_and_the_relays_producer_outside_of_transactions() -> None:
    batch = relay_batch(20, 3, producer=(9, 0, 4), attributes=TRANSACTIONAL, codec=Codec.GZIP)
    data = relayed_batch(batch, STATE)
    header = read_header(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 5)
    assert not header.is_transactional
    assert header.codec == Codec.GZIP
    assert header.crc == checksum(memoryview(data), 0, len(data))
    before = [(r.key, r.value, r.timestamp_ms) for r in iterate_records(memoryview(batch.data), batch.header, 1 << 20)]
    assert [(r.key, r.value, r.timestamp_ms) for r in iterate_records(memoryview(data), header, 1 << 20)] == before


def test_each_record_takes_a_sequence_number_which_wraps() -> None:
    after = advanced(STATE, relay_batch(22, 3))
    assert (after.position, after.sequence) == (25, 8)
    last = RelayRecord(seal=0, target=0, position=0, producer_id=1, sequence=SEQUENCE_MODULUS - 1)
    assert advanced(last, relay_batch(0, 3)).sequence == 2


def test_skipped_batches_take_no_sequence_number_and_the_position_never_goes_back() -> None:
    assert skipped_to(STATE, 30) == RelayRecord(**{**as_fields(STATE), "position": 30})
    assert skipped_to(STATE, 1) == STATE


def as_fields(state: RelayRecord) -> dict[str, int]:
    return {name: getattr(state, name) for name in RelayRecord.__struct_fields__}


def test_a_partition_that_was_never_relayed_starts_at_its_seal_with_a_new_producer() -> None:
    assert start_relay(40, 1, None, 8) == RelayRecord(seal=40, target=1, position=40, producer_id=8)


def test_a_seal_of_a_partition_that_was_relayed_before_goes_on_with_the_sequence() -> None:
    again = start_relay(40, 1, STATE, -1)
    assert again == RelayRecord(**{**as_fields(STATE), "seal": 40, "position": 40})


def test_what_was_relayed_beyond_an_earlier_seal_is_not_relayed_again() -> None:
    assert start_relay(15, 1, STATE, -1) == RelayRecord(**{**as_fields(STATE), "seal": 15})
    assert start_relay(15, 0, STATE, -1).position == 20


def test_another_target_starts_a_new_epoch() -> None:
    other = start_relay(40, 0, STATE, -1)
    assert other == RelayRecord(seal=40, target=0, position=40, producer_id=7, producer_epoch=4)


def test_the_last_epoch_is_followed_by_a_new_producer() -> None:
    last = RelayRecord(**{**as_fields(STATE), "producer_epoch": MAX_PRODUCER_EPOCH - 1})
    renewed = restarted(last, 8)
    assert (renewed.producer_id, renewed.producer_epoch, renewed.sequence) == (8, 0, 0)
    one_left = RelayRecord(**{**as_fields(STATE), "producer_epoch": MAX_PRODUCER_EPOCH - 2})
    assert restarted(one_left, 8).producer_id == 7
    assert (restarted(STATE, -1).producer_epoch, restarted(STATE, -1).sequence) == (4, 0)
    assert start_relay(40, 1, last, 8).producer_id == 8


def test_markers_and_aborted_records_are_not_relayed() -> None:
    batches = [transactional(10, 1), relay_batch(11), transactional(12, 2), marker(13, 1), transactional(14, 1)]
    assert offsets(batches, 10, [(1, 10)]) == [11, 12, 14]


def test_a_transaction_that_began_before_the_position_is_aborted_behind_it_too() -> None:
    batches = [transactional(10, 1), transactional(12, 1), marker(13, 1)]
    assert offsets(batches[1:], 12, [(1, 4)]) == []
    assert offsets(batches, 12, []) == [12]


def test_two_aborted_transactions_of_a_producer_end_at_their_own_markers() -> None:
    batches = [transactional(10, 1), marker(11, 1), transactional(12, 1), marker(13, 1), transactional(14, 1)]
    assert offsets(batches, 10, [(1, 10), (1, 12)]) == [14]


def test_control_batches_of_no_transaction_are_skipped() -> None:
    assert offsets([relay_batch(1, attributes=CONTROL)], 0, []) == []
