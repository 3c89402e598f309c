"""Which broker coordinates which shard of groups and transactional ids: a pure function. Used by the controller.

Shards are spread evenly, to within one, over the brokers that are alive and not draining, with the fewest moves; a
shard whose owner is gone, has restarted or is draining moves at once. Where all that are alive are draining they keep
what they have, as somebody must.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.state import keys
from penstock.state.records import ShardRecord, encode
from penstock.state.store import Compare, Put, Target
from penstock.state.view import ShardView


@dataclass(frozen=True, slots=True)
class ShardChange:
    """A shard is to change hands, where its record is still the one of `revision` (0: there is none)."""

    number: int
    revision: int
    record: ShardRecord

    def condition(self) -> Compare:
        return Compare(keys.shard(self.number), Target.MOD_REVISION, self.revision)

    def put(self) -> Put:
        return Put(keys.shard(self.number), encode(self.record))


def assign(
    shards: Mapping[int, ShardView], brokers: Mapping[int, int], draining: Collection[int] = ()
) -> list[ShardChange]:
    """The changes that bring all shards to where they should be; none where nobody is alive.

    `brokers` are those that are alive, with their broker epochs. All changes fit into one transaction.
    """
    able = [broker for broker in brokers if broker not in draining] or list(brokers)
    if not able:
        return []
    held: dict[int, list[int]] = {broker: [] for broker in sorted(able)}
    homeless: list[int] = []
    for number in range(keys.SHARD_COUNT):
        shard = shards.get(number)
        is_held = shard is not None and brokers.get(shard.broker_id) == shard.broker_epoch and shard.broker_id in held
        (held[shard.broker_id] if is_held and shard is not None else homeless).append(number)
    moving = homeless + give_up(held)
    return [
        change(number, shards.get(number), broker, brokers[broker])
        for number, broker in give_out(moving, held, shards).items()
    ]


def give_up(held: dict[int, list[int]]) -> list[int]:
    """Takes from those that have too much what they must give; who has most keeps one more where some have to."""
    share, over = divmod(keys.SHARD_COUNT, len(held))
    given: list[int] = []
    for place, broker in enumerate(sorted(held, key=lambda b: (-len(held[b]), b))):
        limit = share + (place < over)
        given += held[broker][limit:]
        del held[broker][limit:]
    return given


def give_out(moving: list[int], held: dict[int, list[int]], shards: Mapping[int, ShardView]) -> dict[int, int]:
    """Each to who has least, of those to its last owner: a broker that restarted finds its own again."""
    counts = {broker: len(numbers) for broker, numbers in held.items()}
    owners: dict[int, int] = {}
    for number in sorted(moving):
        last = shards[number].broker_id if number in shards else -1
        owner = min(counts, key=lambda b: (counts[b], b != last, b))
        counts[owner] += 1
        owners[number] = owner
    return owners


def change(number: int, shard: ShardView | None, broker_id: int, broker_epoch: int) -> ShardChange:
    epoch, revision = (shard.epoch + 1, shard.revision) if shard is not None else (1, 0)
    return ShardChange(number, revision, ShardRecord(broker_id=broker_id, broker_epoch=broker_epoch, epoch=epoch))
