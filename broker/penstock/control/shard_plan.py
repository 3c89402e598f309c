"""Assigns coordinator shards of groups and transactional ids to brokers: a pure function. Called by the controller.

Shards are spread to within one over the live brokers that do not drain, with the fewest moves. A shard moves at once if
its owner has gone, restarted or drains. A broker that came back gets only such shards until the controller rebalances.
Rebalancing moves the shards that stayed longest first, so a restart moves a group at most once. If all live brokers
drain, they keep their shards.
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
    """A new owner for a shard, on the condition that its record has `revision` (0: no record)."""

    number: int
    revision: int
    record: ShardRecord

    def condition(self) -> Compare:
        """Return the condition on the record's revision."""
        return Compare(keys.shard(self.number), CompareTarget.MOD_REVISION, self.revision)

    def put(self) -> PutOp:
        """Return the write of the new record."""
        return PutOp(keys.shard(self.number), encode(self.record))


def assign(
    shards: Mapping[int, ShardView],
    brokers: Mapping[int, int],
    draining: Collection[int] = (),
    returned: Collection[int] = (),
) -> list[ShardChange]:
    """Return the changes to the balanced assignment; none if no broker is alive. They fit into one transaction.

    `brokers` maps live brokers to their broker epochs. `returned` brokers get no shards from other live brokers.
    """
    eligible = [broker for broker in brokers if broker not in draining] or list(brokers)
    if not eligible:
        return []
    held: dict[int, list[int]] = {broker: [] for broker in sorted(eligible)}
    unowned: list[int] = []
    for number in range(keys.SHARD_COUNT):
        shard = shards.get(number)
        is_held = shard is not None and brokers.get(shard.broker_id) == shard.broker_epoch and shard.broker_id in held
        (held[shard.broker_id] if is_held and shard is not None else unowned).append(number)
    owners = assign_unowned(unowned, held, shards)
    owners |= balance(held, Counter(owners.values()), shards, [broker for broker in eligible if broker not in returned])
    assert owners.keys() >= set(unowned), f"shards {unowned} need owners, assigned are {owners}"
    assert held.keys() >= set(owners.values()), f"the owners {owners} are not all among {eligible}"
    return [
        make_change(number, shards.get(number), broker, brokers[broker]) for number, broker in sorted(owners.items())
    ]


def assign_unowned(
    unowned: list[int], held: Mapping[int, list[int]], shards: Mapping[int, ShardView]
) -> dict[int, int]:
    """Give each shard to the broker with the fewest, preferring its last owner: a restarted broker gets its own
    back."""
    counts = {broker: len(numbers) for broker, numbers in held.items()}
    owners: dict[int, int] = {}
    for number in unowned:
        last = shards[number].broker_id if number in shards else -1
        owner = min(counts, key=lambda b: (counts[b], b != last, b))
        counts[owner] += 1
        owners[number] = owner
    return owners


def balance(
    held: Mapping[int, list[int]],
    assigned: Mapping[int, int],
    shards: Mapping[int, ShardView],
    recipients: Collection[int],
) -> dict[int, int]:
    """Move shards from the broker with the most to the recipient with the fewest, until they differ by at most one.

    `assigned` counts the shards that each broker got in `assign_unowned`; those stay.
    """
    oldest_last = {b: sorted(held[b], key=lambda n: shards[n].revision, reverse=True) for b in held}
    counts = {broker: len(numbers) + assigned.get(broker, 0) for broker, numbers in held.items()}
    owners: dict[int, int] = {}
    while recipients:
        least = min(recipients, key=lambda b: (counts[b], b))
        donors = [broker for broker, numbers in oldest_last.items() if numbers and counts[broker] > counts[least] + 1]
        if not donors:
            break
        most = min(donors, key=lambda b: (-counts[b], b))
        owners[oldest_last[most].pop()] = least
        counts[most] -= 1
        counts[least] += 1
    return owners


def make_change(number: int, shard: ShardView | None, broker_id: int, broker_epoch: int) -> ShardChange:
    """Return the change that gives a shard to a broker, with the next shard epoch."""
    epoch, revision = (shard.epoch + 1, shard.revision) if shard is not None else (1, 0)
    return ShardChange(number, revision, ShardRecord(broker_id=broker_id, broker_epoch=broker_epoch, epoch=epoch))
