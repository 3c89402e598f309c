"""The writer changes many partitions in few transactions, and overwrites no concurrent change."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.control.controller.index import PartitionId
from penstock.control.controller.leaders import record_of
from penstock.control.controller.writer import MAX_BATCH_PARTITIONS, ProposalOutcome, ProposalWriter, StoreProposal
from penstock.state import keys
from penstock.state.records import PartitionRecord, decode
from penstock.state.store import DeleteOp, StoreUnavailable


async def proposals_of(world, count: int) -> list[StoreProposal]:
    """Return proposals of a new leader epoch for each partition of a topic."""
    topic_id = await world.topic("t", *[[1, 2, 3]] * count)
    return [
        StoreProposal(PartitionId(topic_id, p.index), p.revision, replace(record_of(p), leader_epoch=9))
        for p in world.view.topics["t"].partitions
    ]


async def written(world, proposals: list[StoreProposal]) -> tuple[ProposalWriter, list[ProposalOutcome]]:
    writer = ProposalWriter(world.store, world.the_controller().term.leadership)
    fates = {}
    await world.finish(writer.write(proposals, lambda proposal, outcome, _: fates.update({proposal.key: outcome})))
    return writer, [fates[p.key] for p in proposals if p.key in fates]


async def test_a_whole_batch_is_one_transaction(three) -> None:
    writer, fates = await written(three, await proposals_of(three, MAX_BATCH_PARTITIONS))
    assert fates == [ProposalOutcome.WRITTEN] * MAX_BATCH_PARTITIONS
    assert writer.transactions == 1


async def test_what_a_leader_wrote_meanwhile_is_not_overwritten_and_the_rest_is_written(three) -> None:
    proposals = await proposals_of(three, 100)
    await three.change("t", 42, lambda record: replace(record, isr=[1, 2], isr_epochs=record.isr_epochs[:2]))
    writer, fates = await written(three, proposals)
    assert [i for i, outcome in enumerate(fates) if outcome is ProposalOutcome.STALE] == [42]
    assert fates.count(ProposalOutcome.WRITTEN) == 99
    assert writer.transactions <= 16
    entry = await three.store.get(keys.partition(*proposals[42].key))
    kept = decode(PartitionRecord, entry.key, entry.value)
    assert (kept.leader_epoch, kept.isr) == (0, [1, 2])


async def test_nothing_is_written_once_another_is_controller(three) -> None:
    proposals = await proposals_of(three, 3)
    leadership = three.the_controller().term.leadership
    await three.store.txn([], [DeleteOp(keys.CONTROLLER)])
    writer = ProposalWriter(three.store, leadership)
    await three.finish(writer.write(proposals, lambda *_: None))
    assert writer.written == 0
    assert leadership.lost.is_set()
    before = writer.transactions
    await three.finish(writer.write(proposals, lambda *_: None))
    assert writer.transactions == before


async def test_without_an_answer_the_fate_is_unknown(three) -> None:
    proposals = await proposals_of(three, 3)
    real = three.store.txn

    async def away(*arguments):
        raise StoreUnavailable("away")

    three.store.txn = away
    assert (await written(three, proposals))[1] == [ProposalOutcome.UNKNOWN] * 3
    three.store.txn = real
