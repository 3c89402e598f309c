"""Bugs of scheduled records, of topics whose number of partitions changes, and of filters; see `cluster_bugs`."""

from __future__ import annotations

from penstock_simulation.planted import Bug, Edit, Hunt, one_edit

SCHEDULES, RESIZES, FILTERS = ("schedules",), ("resizes",), ("filters",)
TOPIC_BUGS: tuple[tuple[Bug, Hunt], ...] = (
    (
        one_edit(
            "schedule-forgotten-at-restart",
            "a new leader forgets the records that wait",
            "replica/scheduled_delivery.py",
            "        self.index = index\n        self.on_log_start()\n",
            "        self.index = ScheduleIndex()\n        self.on_log_start()\n",
        ),
        Hunt(("kill", "restart", "rolling_restart"), SCHEDULES),
    ),
    (
        one_edit(
            "delivery-doubled-after-failover",
            "a new leader does not see what the leaders before it have delivered",
            "log/scheduled_records.py",
            "            elif is_delivered(header):\n",
            "            elif is_delivered(header) and False:\n",
        ),
        Hunt(("kill", "restart", "rolling_restart"), SCHEDULES),
    ),
    (
        one_edit(
            "cancel-lost",
            "a cancellation does not stop a delivery that has begun",
            "replica/scheduled_delivery.py",
            "        if index.has_removed_taken():\n",
            "        if index.has_removed_taken() and False:\n",
        ),
        Hunt(("disk_slow", "kill"), SCHEDULES),
    ),
    (
        one_edit(
            "cancel-lost-at-restart",
            "a new leader does not apply the cancellations before its time",
            "log/scheduled_records.py",
            "                schedule.apply_rows(header.base_offset, table.rows)\n",
            "                rows = [row if row[0] >= 0 else (-1, -1, 0, row[3]) for row in table.rows]\n"
            "                schedule.apply_rows(header.base_offset, rows)\n",
        ),
        Hunt(("kill", "restart", "rolling_restart"), SCHEDULES),
    ),
    (
        one_edit(
            "scheduled-record-early",
            "the leader delivers what is due in the next seconds too",
            "replica/scheduled_delivery.py",
            "        records = index.take_due(now_ms, MAX_RECORDS)\n",
            "        records = index.take_due(now_ms + 60_000, MAX_RECORDS)\n",
        ),
        Hunt(("kill",), SCHEDULES),
    ),
    (
        one_edit(
            "due-record-delivered-again",
            "a record that was delivered with its batch waits nevertheless",
            "replica/scheduled_delivery.py",
            "            DONE if is_delivered and 0 <= row.due_ms <= records.now_ms else",
            "            DONE if not is_delivered and 0 <= row.due_ms <= records.now_ms else",
        ),
        Hunt(("kill",), SCHEDULES),
    ),
    (
        Bug(
            "schedule-snapshot-trusted",
            "a new leader takes a snapshot of what waits for that of its log, although the log was truncated",
            (
                Edit(
                    "replica/schedule_snapshots.py",
                    "source = source_of(log, is_durable=True)",
                    "source = source_of(log)",
                ),
                Edit(
                    "replica/schedule_snapshots.py",
                    " and EpochHistory(source.epochs).epoch_at(end_offset - 1) == epoch",
                    "",
                ),
            ),
        ),
        Hunt(("kill", "isolate", "pause", "power_loss", "cut_peers"), SCHEDULES),
    ),
    (
        one_edit(
            "relay-without-sequence",
            "batches are relayed without the sequence of an idempotent producer",
            "shrink/relay_state.py",
            "    fields[9:12] = state.producer_id, state.producer_epoch, state.sequence\n",
            "    fields[9:12] = -1, -1, -1\n",
        ),
        Hunt(("kill", "kill_in_loop", "kill_several", "cut_peers"), RESIZES),
    ),
    (
        one_edit(
            "relay-goes-on",
            "the relay goes on behind a batch that the target has not taken",
            "shrink/relay.py",
            "        if error in WRITTEN:\n",
            "        if error in WRITTEN or error:\n",
        ),
        Hunt(("kill", "kill_in_loop", "kill_several", "cut_peers"), RESIZES),
    ),
    (
        one_edit(
            "seal-before-high-watermark",
            "a partition is sealed at the end of its log before all below it is committed",
            "shrink/sealed_partition.py",
            "        if leader.high_watermark < offset:\n            return True\n",
            "",
        ),
        Hunt(("isolate", "cut_peers", "kill", "power_loss"), RESIZES),
    ),
    (
        one_edit(
            "seal-not-hidden",
            "consumers read what lies behind the seal, although it is relayed",
            "replica/partition.py",
            "        return end if self.seal_offset < 0 else min(end, self.seal_offset)\n",
            "        return end\n",
        ),
        Hunt(("kill",), RESIZES),
    ),
    (
        one_edit(
            "opened-at-the-seal",
            "a partition that is opened again shows what was relayed",
            "shrink/sealing.py",
            "        gaps.append((first, relayed_end))\n",
            "        pass\n",
        ),
        Hunt(("kill",), RESIZES),
    ),
    (
        one_edit(
            "filter-drops-match",
            "a batch of which one record passes the filter is left out",
            "api/fetch_filters.py",
            "return found.data if found.record_count else None",
            "return found.data if found.record_count > 1 else None",
        ),
        Hunt(("kill",), FILTERS),
    ),
    (
        one_edit(
            "share-filter-archives-match",
            "the first record of a batch that passes the filter is archived",
            "share/partition.py",
            "            self._archive_filtered(first - 1)\n",
            "            self._archive_filtered(first)\n            first += 1\n",
        ),
        Hunt(("kill",), ("filters", "queues")),
    ),
)
