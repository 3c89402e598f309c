"""Cluster bugs that the simulation must detect, planted by `planted`, and the faults under which each shows quickly."""

from __future__ import annotations

from penstock_simulation.planted import BUGS, Bug, Edit, Hunt, one_edit
from penstock_simulation.topic_bugs import TOPIC_BUGS

FOLLOWER_IS_MADE = "                leader_id=placed.leader,\n                host=manager,\n            )\n        )\n"
HUNTED: tuple[tuple[Bug, Hunt], ...] = (
    (
        one_edit(
            "follower-reports-unflushed",
            "a follower reports as flushed what it has only written",
            "replica/partition.py",
            "return self.log.flushed_offset if self.flushes_each_batch else self.log.end_offset",
            "return self.log.end_offset",
        ),
        Hunt(("power_loss_everywhere", "disk_slow")),
    ),
    (
        Bug(
            "truncated-to-high-watermark",
            "a new follower truncates its log to the high watermark that it knows",
            (
                Edit(
                    "replica/roles.py",
                    "        manager.add_role(\n            Follower(\n",
                    "        follower = (\n            Follower(\n",
                ),
                Edit(
                    "replica/roles.py",
                    FOLLOWER_IS_MADE,
                    f"{FOLLOWER_IS_MADE}        manager.add_role(follower)\n"
                    "        if follower.log.end_offset > high_watermark:\n"
                    "            follower.start_work(follower.truncate(high_watermark))\n",
                ),
            ),
        ),
        Hunt(("kill", "kill_several", "rolling_restart", "restart", "pause")),
    ),
    (
        one_edit(
            "leader-epoch-ignored",
            "a leader does not look at the epochs of what a follower has when that fetches",
            "api/replica_fetch.py",
            "if request.last_fetched_epoch >= 0:",
            "if request.last_fetched_epoch < -9:",
        ),
        Hunt(("kill", "isolate", "pause", "power_loss", "cut_peers")),
    ),
    (
        one_edit(
            "isr-expanded-early",
            "a follower is taken into the ISR before it has all that is committed",
            "replica/leader.py",
            "[p for p in isr.out_of_sync() if p.flushed_offset >= reached]",
            "isr.out_of_sync()",
        ),
        Hunt(("kill", "isolate", "kill_several", "cut_peers")),
    ),
    (
        one_edit(
            "isr-shrunk-without-store",
            "a leader leaves a slow follower out without asking the store",
            "replica/leader.py",
            "self.propose(removed, [])",
            "isr.maximal = [p for p in isr.maximal if p.broker_id not in removed]\n                self.advance()",
        ),
        Hunt(("isolate", "cut_peers", "kill", "pause")),
    ),
    (
        one_edit(
            "lease-trusted",
            "a leader whose lease is good changes the ISR without comparing the partition's record",
            "replica/isr_changes.py",
            "compares.append(Compare(key, CompareTarget.MOD_REVISION, change.before.revision))",
            "pass",
        ),
        Hunt(("watch_lag", "isolate", "restart", "store_slow", "pause"), ("reassignment",)),
    ),
    (
        one_edit(
            "delay-forgotten-at-restart",
            "a new leader takes all records that it finds for due",
            "replica/delayed_delivery.py",
            "window.known_ms - window.delay_ms",
            "window.known_ms",
        ),
        Hunt(("kill", "restart", "rolling_restart"), ("delays",)),
    ),
    (
        one_edit(
            "producers-not-followed",
            "a follower does not keep what it needs to recognise duplicates",
            "replica/follower.py",
            "            self.log.state.replay(header)\n",
            "            pass\n",
        ),
        Hunt(("kill", "restart", "cut")),
    ),
    (
        one_edit(
            "marker-lost",
            "a coordinator that takes over a shard does not go on with transactions that are decided",
            "txn/coordinator.py",
            "        for transaction in shard.transactions.values():\n            self._arm(transaction)\n",
            "        for transaction in shard.transactions.values():\n"
            "            if state_of(transaction.record) not in PREPARED:\n"
            "                self._arm(transaction)\n",
        ),
        Hunt(("kill", "kill_several", "store_leader_change"), ("transactions",)),
    ),
    (
        one_edit(
            "commit-unfenced",
            "a coordinator writes offsets without comparing that the shard is still its own",
            "group/request_queue.py",
            "            compares += batch.writer.guard.write_compares()\n",
            "            pass\n",
        ),
        Hunt(("store_cut", "store_away_overtaken")),
    ),
    (BUGS["duplicate-answered-early"], Hunt(("cut", "isolate", "power_loss_everywhere", "kill_several", "cut_peers"))),
    (
        Bug(
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
                    "return own_epoch >= 0 and epoch in (-1, own_epoch)",
                    "return own_epoch >= 0",
                ),
                Edit(
                    "replica/isr.py",
                    "if found is not None and epoch in (ANY_EPOCH, found.epoch):",
                    "if found is not None:",
                ),
            ),
        ),
        Hunt(("kill", "power_loss", "power_loss_everywhere")),
    ),
    (
        one_edit(
            "unclean-elected",
            "a replica that was not in sync leads when no in-sync replica is up",
            "control/controller/leaders.py",
            "complete = [broker for broker, condition in back.items() if condition is ReplicaCondition.COMPLETE]",
            "complete = [broker for broker in record.replicas if broker in facts.epochs]",
        ),
        Hunt(("kill_in_sync", "isolate", "cut_peers")),
    ),
    (
        one_edit(
            "out-of-range-unconfirmed",
            "a leader that was replaced and does not know calls out of range what its successor has",
            "api/fetch.py",
            "            if self.needs_confirmation(partition):\n",
            "            if self.needs_confirmation(partition) and False:\n",
        ),
        Hunt(("store_cut", "lease_ends", "reset")),
    ),
    (
        one_edit(
            "rights-unconfirmed",
            "a broker that was cut off from the store allows what was revoked meanwhile",
            "control/acl_confirmation.py",
            "return self.clock.boot_ms() < self.deadline_ms",
            "return True",
        ),
        Hunt(("store_cut", "watch_lag", "isolate"), ("rights",)),
    ),
    (
        one_edit(
            "share-ack-early",
            "an acknowledgement of a record is answered before it is durable",
            "share/leader.py",
            "            self._waiting.setdefault(write, []).append(on_done)\n",
            "            on_done(error)\n",
        ),
        Hunt(("kill", "kill_several", "isolate"), ("queues",)),
    ),
    (
        one_edit(
            "share-release-ends",
            "a record that a member releases is not delivered again",
            "share/partition.py",
            "if ack_type == AckType.RELEASE:\n            return self._released(run)",
            "if ack_type == AckType.RELEASE:\n            return RecordState.ARCHIVED",
        ),
        Hunt(("kill",), ("queues",)),
    ),
    (
        one_edit(
            "epoch-not-bumped",
            "the end of a transaction leaves its producer the same epoch",
            "txn/state_machine.py",
            'changes = {"epoch": record.epoch + 1, "last_epoch"',
            'changes = {"epoch": record.epoch, "last_epoch"',
        ),
        Hunt(("kill", "cut"), ("transactions",)),
    ),
    (
        Bug(
            "late-batch-accepted",
            "a leader and a coordinator accept a batch of a transaction that has ended",
            (
                Edit(
                    "replica/producer_state.py",
                    "        if header.producer_epoch < entry.epoch:\n            return SequenceCheck.FENCED, None\n",
                    "        if header.producer_epoch < entry.epoch:\n            return SequenceCheck.APPEND, None\n",
                ),
                Edit(
                    "replica/producer_state.py",
                    "same = not is_open or self.entries[header.producer_id].epoch == header.producer_epoch",
                    "same = True",
                ),
                Edit(
                    "replica/producer_state.py",
                    "assert now_ms is None or before.epoch < entry.epoch, (",
                    "assert now_ms is None or before.epoch != entry.epoch, (",
                ),
            ),
        ),
        Hunt(("kill", "restart"), ("transactions",)),
    ),
    (
        one_edit(
            "addition-not-stored",
            "a coordinator answers that a partition is part of the transaction before the store has it",
            "txn/coordinator.py",
            "        return VerifiedTransaction(await self._update(transactional_id, decide), number)\n",
            "        transaction, error = self._find(transactional_id)\n"
            "        if error or transaction is None or transaction.lock.locked():\n"
            "            return VerifiedTransaction(await self._update(transactional_id, decide), number)\n"
            "        transition = decide(transaction.record)\n"
            "        if transition.record is not None:\n"
            "            transaction.record = transition.record\n"
            "        return VerifiedTransaction(transition.error, number)\n",
        ),
        Hunt(("kill", "kill_several", "store_leader_change"), ("transactions",)),
    ),
    (
        one_edit(
            "share-key-order-across-release",
            "a record that is released no longer blocks the later ones of its key",
            "share/partition.py",
            "if self._order is not None and not state.is_open:",
            "if self._order is not None:",
        ),
        Hunt(("kill",), ("queues",)),
    ),
    (
        one_edit(
            "share-key-freed-early",
            "a record that was delivered too often frees its key before the store has that",
            "share/partition.py",
            "remove = self._order.remove if is_durable else self._order.remove_when_written",
            "remove = self._order.remove",
        ),
        Hunt(("store_away", "kill"), ("queues",)),
    ),
    (
        one_edit(
            "share-backoff-ignored",
            "a released record is available at once",
            "share/redelivery.py",
            "return self.backoff.after(delivery_count)",
            "return 0.0",
        ),
        Hunt(("kill",), ("queues",)),
    ),
    (
        one_edit(
            "dead-letter-after-archive",
            "a record is archived durably before its dead letter is written",
            "share/dead_letter_writer.py",
            "        result = await self._services.logs.append(batch.target, await self._encode(batch))\n"
            "        if not self._leader.is_fenced:\n"
            "            await self._handle(batch, result)\n",
            "        data = await self._encode(batch)\n"
            "        self._read = None\n"
            "        self._letters.complete()\n"
            "        await self._leader.store_letters()\n"
            "        for _ in range(3):\n"
            "            if (await self._services.logs.append(batch.target, data)).error in WRITTEN:\n"
            "                return\n"
            "            await asyncio.sleep(0.1)\n",
        ),
        Hunt(("kill", "kill_in_loop", "kill_several", "power_loss"), ("queues",)),
    ),
    (
        one_edit(
            "dead-letter-without-sequence",
            "dead letters are written without the sequence of an idempotent producer",
            "share/dead_letter_records.py",
            "    return builder.build(\n"
            "        producer_id=batch.producer_id, producer_epoch=batch.producer_epoch, base_sequence=batch.sequence\n"
            "    )\n",
            "    return builder.build()\n",
        ),
        Hunt(("kill", "kill_in_loop", "kill_several", "isolate"), ("queues",)),
    ),
    (
        one_edit(
            "share-state-unfenced",
            "the coordinator accepts the state of a leader whose share-partition another one has claimed",
            "share/state.py",
            "        return ErrorCode.NONE if follows else ErrorCode.FENCED_LEADER_EPOCH\n",
            "        return ErrorCode.NONE\n",
        ),
        Hunt(("isolate", "pause", "pause_in_loop", "watch_lag", "store_cut"), ("queues",)),
    ),
    (
        one_edit(
            "share-lock-kept-at-failover",
            "a new leader regards the records that were delivered before as locked forever",
            "share/partition.py",
            "        self.window.append(Run(stored.first, stored.last, state, stored.delivery_count))\n",
            "        run = Run(stored.first, stored.last, state, stored.delivery_count)\n"
            "        if state is RecordState.AVAILABLE and stored.delivery_count:\n"
            '            run.acquire("", NEVER)\n'
            "        self.window.append(run)\n",
        ),
        Hunt(("kill", "restart"), ("queues",)),
    ),
    (
        one_edit(
            "former-owner-commits",
            "a member that was removed from its consumer group may still commit",
            "group/modern/consumer.py",
            "        return ErrorCode.UNKNOWN_MEMBER_ID\n    if epoch == member.epoch:\n        return ErrorCode.NONE",
            "        return ErrorCode.NONE\n    if epoch == member.epoch:\n        return ErrorCode.NONE",
        ),
        Hunt(("pause_client", "cut"), ("groups",)),
    ),
    (
        one_edit(
            "watermark-not-sent",
            "a leader sends a follower no high watermark without records, and the follower of an idle partition lags",
            "api/replica_fetch.py",
            "        if records is None and followed.last_sent == (high, start):\n",
            "        if records is None and followed.last_sent[1] == start:\n",
        ),
        Hunt(("kill",)),
    ),
    (BUGS["deferred-batch-overtaken"], Hunt(("restart", "watch_lag", "store_slow"), ("transactions",))),
    *TOPIC_BUGS,
)
CLUSTER_BUGS: dict[str, Bug] = {bug.name: bug for bug, _ in HUNTED}
"""Cluster bugs by name."""
HUNTS: dict[str, Hunt] = {bug.name: hunt for bug, hunt in HUNTED}
assert len(CLUSTER_BUGS) == len(HUNTED), "two bugs have one name"
