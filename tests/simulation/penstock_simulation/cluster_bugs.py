"""The bugs of a cluster that the simulation claims to catch, each planted by `planted`; and where each shows soon."""

from __future__ import annotations

from typing import NamedTuple

from penstock_simulation.planted import BUGS, Bug, Edit


class Hunt(NamedTuple):
    """The faults and workloads among which a bug shows soon."""

    kinds: tuple[str, ...]
    features: tuple[str, ...] = ()


ACKNOWLEDGED_UNFLUSHED = Bug(
    "follower-reports-unflushed",
    "a follower reports as flushed what it has only written",
    (
        Edit(
            "replica/partition.py",
            "return self.log.flushed_offset if self.config.flushes_each_batch else self.log.end_offset",
            "return self.log.end_offset",
        ),
    ),
)
TRUNCATED_TO_HIGH_WATERMARK = Bug(
    "truncated-to-high-watermark",
    "a new follower truncates its log to the high watermark that it knows",
    (
        Edit(
            "replica/roles.py",
            "        manager.keep(\n            Follower(\n",
            "        follower = (\n            Follower(\n",
        ),
        Edit(
            "replica/roles.py",
            "                leader_id=placed.leader,\n                host=manager,\n            )\n        )\n",
            "                leader_id=placed.leader,\n                host=manager,\n            )\n        )\n"
            "        manager.keep(follower)\n"
            "        if follower.log.end_offset > high_watermark:\n"
            "            follower.begin(follower.truncate(high_watermark))\n",
        ),
    ),
)
LEADER_EPOCH_IGNORED = Bug(
    "leader-epoch-ignored",
    "a leader does not look at the epochs of what a follower has when that fetches",
    (Edit("api/replica_fetch.py", "if asked.last_fetched_epoch >= 0:", "if asked.last_fetched_epoch < -9:"),),
)
EXPANDED_EARLY = Bug(
    "isr-expanded-early",
    "a follower is taken into the ISR before it has all that is committed",
    (Edit("replica/leader.py", "if p.flushed_offset >= reached and host.may_join(", "if host.may_join("),),
)
SHRUNK_ALONE = Bug(
    "isr-shrunk-without-store",
    "a leader leaves a slow follower out without asking the store",
    (
        Edit(
            "replica/leader.py",
            "self.propose(host, gone, [])",
            "isr.maximal = [p for p in isr.maximal if p.broker_id not in gone]\n                self.advance()",
        ),
    ),
)
LEASE_TRUSTED = Bug(
    "lease-trusted",
    "a leader whose lease is good changes the ISR without comparing the partition's record",
    (
        Edit(
            "replica/isr_changes.py",
            "compares.append(Compare(key, Target.MOD_REVISION, change.before.revision))",
            "pass",
        ),
    ),
)
PRODUCERS_NOT_FOLLOWED = Bug(
    "producers-not-followed",
    "a follower does not keep what it needs to recognise duplicates",
    (Edit("replica/follower.py", "            self.log.state.replay(header)\n", "            pass\n"),),
)
MARKER_LOST = Bug(
    "marker-lost",
    "a coordinator that takes over a shard does not go on with transactions that are decided",
    (
        Edit(
            "txn/coordinator.py",
            "        for transaction in shard.transactions.values():\n            self._arm(transaction)\n",
            "        for transaction in shard.transactions.values():\n"
            "            if state_of(transaction.record) not in PREPARED:\n"
            "                self._arm(transaction)\n",
        ),
    ),
)
COMMIT_UNFENCED = Bug(
    "commit-unfenced",
    "a coordinator writes offsets without comparing that the shard is still its own",
    (
        Edit(
            "group/lanes.py",
            "            if part.writer.guard is not None:\n                compares +=",
            "            if part.writer is None:\n                compares +=",
        ),
    ),
)
OLD_INCARNATION = Bug(
    "old-incarnation",
    "a broker that was restarted counts as the incarnation that it was before",
    (
        Edit(
            "control/controller/leaders.py",
            "return known is not None and (known == epoch or epoch == UNKNOWN_EPOCH)",
            "return known is not None",
        ),
        Edit(
            "replica/roles.py",
            "return membership.epoch >= 0 and epoch in (-1, membership.epoch)",
            "return membership.epoch >= 0",
        ),
        Edit(
            "replica/isr.py",
            "if found is not None and epoch in (ANY_EPOCH, found.epoch):",
            "if found is not None:",
        ),
    ),
)
UNCLEAN_ALONE = Bug(
    "unclean-elected",
    "a replica that was not in sync leads when nobody in sync is there",
    (
        Edit(
            "control/controller/leaders.py",
            "complete = [broker for broker, standing in back.items() if standing is Standing.KEEPS]",
            "complete = [broker for broker in record.replicas if broker in facts.epochs]",
        ),
    ),
)

HUNTS: dict[str, Hunt] = {
    ACKNOWLEDGED_UNFLUSHED.name: Hunt(("power_loss_everywhere", "disk_slow")),
    TRUNCATED_TO_HIGH_WATERMARK.name: Hunt(("kill", "kill_several", "rolling_restart", "restart", "pause")),
    LEADER_EPOCH_IGNORED.name: Hunt(("kill", "isolate", "pause", "power_loss", "cut_peers")),
    EXPANDED_EARLY.name: Hunt(("kill", "isolate", "kill_several", "cut_peers")),
    SHRUNK_ALONE.name: Hunt(("isolate", "cut_peers", "kill", "pause")),
    LEASE_TRUSTED.name: Hunt(("watch_lag", "isolate", "restart", "store_slow", "pause"), ("reassignment",)),
    PRODUCERS_NOT_FOLLOWED.name: Hunt(("kill", "restart", "cut")),
    MARKER_LOST.name: Hunt(("kill", "kill_several", "store_leader_change"), ("transactions",)),
    COMMIT_UNFENCED.name: Hunt(("store_cut", "store_away_overtaken")),
    "duplicate-answered-early": Hunt(("cut", "isolate", "power_loss_everywhere", "kill_several", "cut_peers")),
    OLD_INCARNATION.name: Hunt(("kill", "power_loss", "power_loss_everywhere")),
    UNCLEAN_ALONE.name: Hunt(("kill_in_sync", "isolate", "cut_peers")),
}
CLUSTER_BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        ACKNOWLEDGED_UNFLUSHED,
        TRUNCATED_TO_HIGH_WATERMARK,
        LEADER_EPOCH_IGNORED,
        EXPANDED_EARLY,
        SHRUNK_ALONE,
        LEASE_TRUSTED,
        PRODUCERS_NOT_FOLLOWED,
        MARKER_LOST,
        COMMIT_UNFENCED,
        BUGS["duplicate-answered-early"],
        OLD_INCARNATION,
        UNCLEAN_ALONE,
    )
}
"""By name, the bugs of a cluster."""
assert CLUSTER_BUGS.keys() == HUNTS.keys(), "each bug has its hunt"
