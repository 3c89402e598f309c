"""Which broker coordinates which shard of groups and transactional ids: a pure function. Used by the controller.

Shards are spread evenly, to within one, over the brokers that are alive and not draining, with the fewest moves; a
shard whose owner is gone, has restarted or is draining moves at once. A broker that came back takes only such shards
until the controller evens all of them out. Of the shards that move for balance, those that stayed longest move first:
so a restart moves a group at most once. Where all that are alive are draining they keep what they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.state import keys
from penstock.state.records import ShardRecord, encode
from penstock.state.store import Compare, CompareTarget, PutOp
from penstock.state.view import ShardView


@dataclass(frozen=True, slots=True)
class ShardChange:
    """A shard is to change hands, where its record is still the one of `revision` (0: there is none)."""

    number: int
    revision: int
    record: ShardRecord

    def condition(self) -> Compare:
        return Compare(keys.shard(self.number), CompareTarget.MOD_REVISION, self.revision)

    def put(self) -> PutOp:
        return PutOp(keys.shard(self.number), encode(self.record))


def assign(
    shards: Mapping[int, ShardView],
    brokers: Mapping[int, int],
    draining: Collection[int] = (),
    returned: Collection[int] = (),
) -> list[ShardChange]:
    """The changes that bring all shards to where they should be; none where no broker is alive.

    `brokers` are those that are alive, with their broker epochs. `returned` are those that take no shard from another
    broker that is alive. All changes fit into one transaction.
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
    owners = give_out(homeless, held, shards)
    owners |= even_out(held, Counter(owners.values()), shards, [broker for broker in able if broker not in returned])
    return [change(number, shards.get(number), broker, brokers[broker]) for number, broker in sorted(owners.items())]


def give_out(homeless: list[int], held: Mapping[int, list[int]], shards: Mapping[int, ShardView]) -> dict[int, int]:
    """Each to the broker that has fewest, among those to its last owner: a broker that restarted finds its own."""
    counts = {broker: len(numbers) for broker, numbers in held.items()}
    owners: dict[int, int] = {}
    for number in homeless:
        last = shards[number].broker_id if number in shards else -1
        owner = min(counts, key=lambda b: (counts[b], b != last, b))
        counts[owner] += 1
        owners[number] = owner
    return owners


def even_out(
    held: Mapping[int, list[int]], given: Mapping[int, int], shards: Mapping[int, ShardView], takers: Collection[int]
) -> dict[int, int]:
    """Moves from the broker that has most to the taker that has fewest, until they differ by one at most.

    `given` says how many shards without an owner each broker has got; those stay.
    """
    oldest_last = {b: sorted(held[b], key=lambda n: shards[n].revision, reverse=True) for b in held}
    counts = {broker: len(numbers) + given.get(broker, 0) for broker, numbers in held.items()}
    owners: dict[int, int] = {}
    while takers:
        least = min(takers, key=lambda b: (counts[b], b))
        givers = [broker for broker, numbers in oldest_last.items() if numbers and counts[broker] > counts[least] + 1]
        if not givers:
            break
        most = min(givers, key=lambda b: (-counts[b], b))
        owners[oldest_last[most].pop()] = least
        counts[most] -= 1
        counts[least] += 1
    return owners


def change(number: int, shard: ShardView | None, broker_id: int, broker_epoch: int) -> ShardChange:
    epoch, revision = (shard.epoch + 1, shard.revision) if shard is not None else (1, 0)
    return ShardChange(number, revision, ShardRecord(broker_id=broker_id, broker_epoch=broker_epoch, epoch=epoch))
