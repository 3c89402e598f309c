"""The faults. Each quotes the line that keeps a guarantee; when that line changes, update the entry."""

from __future__ import annotations

from penstock_faults.planting import Fault
from penstock_faults.reported import REPORTED
from penstock_faults.security import SECURITY

GUARDS = "tests/faults/test_guards.py::"
SEALS = "broker/tests/shrink/test_sealed_partition.py::"
IMAGES = "broker/tests/log/test_crash_images.py::"
FLUSH = "broker/tests/log/test_flush.py::"
GROUPS = "broker/tests/group/"

CORE = (
    Fault(
        name="crc-unchecked",
        says="the CRC of produced batches is not compared",
        file="wire/batch_check.py",
        old="    if crc32c(batch[CRC_START:]) != crc:\n",
        new="    if False:\n",
        caught_by=(GUARDS + "test_a_batch_whose_bytes_do_not_match_its_crc_is_refused",),
    ),
    Fault(
        name="fsync-skipped",
        says="batches are acknowledged without fdatasync",
        file="log/flusher.py",
        old="        self.sync_each(sync_file, files)\n",
        new="",
        caught_by=(
            GUARDS + "test_a_batch_counts_once_fdatasync_has_returned_and_not_before",
            IMAGES + "test_all_that_was_acknowledged_survives_a_crash_at_any_step",
            FLUSH + "test_nothing_is_flushed_before_its_file_and_its_directories_are_synced",
        ),
    ),
    Fault(
        name="duplicates-undetected",
        says="a repeated batch of an idempotent producer is written again",
        file="replica/producer_state.py",
        old="                return SequenceCheck.DUPLICATE, batch\n",
        new="                return SequenceCheck.APPEND, None\n",
        caught_by=(
            GUARDS + "test_a_repeated_batch_is_answered_with_its_first_offset_and_not_written_again",
            "broker/tests/replica/test_producer_state.py::test_a_repeated_batch_is_a_duplicate_of_the_original",
        ),
    ),
    Fault(
        name="generation-unfenced",
        says="members of an older generation of a group can still commit offsets",
        file="group/state_machine.py",
        old="        if generation != self.phases.generation:\n",
        new="        if False:\n",
        caught_by=(
            GROUPS + "test_assigning.py::test_members_commit_in_their_generation_only",
            GROUPS + "test_assigning.py::test_a_heartbeat_of_another_generation_is_refused",
        ),
    ),
    Fault(
        name="torn-tail-kept",
        says="recovery does not truncate a torn batch at the end of a segment",
        file="log/recovery.py",
        old="        file.truncate(segment.size)\n",
        new="",
        caught_by=(GUARDS + "test_what_is_torn_at_the_end_is_cut_off_and_the_log_goes_on_behind_it",),
    ),
)
"""The five faults that each run of the tests replays."""

MORE = (
    Fault(
        name="acknowledged-when-written",
        says="acks=all is acknowledged as soon as the batch is in the page cache",
        file="api/produce_wait.py",
        old="if acks == ALL and partition.high_watermark < outcome.required_offset:\n",
        new="if False:\n",
        caught_by=(GUARDS + "test_a_broker_whose_disk_does_not_answer_acknowledges_nothing",),
    ),
    Fault(
        name="acknowledged-when-written-alike",
        says="acks=all is acknowledged from the page cache, for requests that match the produce template",
        file="api/produce.py",
        old=" or (acks == ALL and leader.high_watermark < required_offset):\n",
        new=":\n",
        caught_by=(GUARDS + "test_a_broker_whose_disk_does_not_answer_acknowledges_nothing",),
    ),
    Fault(
        name="high-watermark-unflushed",
        says="consumers receive, and acks=all acknowledges, records that are not on disk yet",
        file="replica/leader.py",
        old="        reached = log.flushed_offset if self.flushes_each_batch else log.end_offset\n"
        "        if self.isr is not None:\n",
        new="        reached = log.end_offset\n        if self.isr is not None:\n",
        caught_by=(GUARDS + "test_only_what_was_flushed_counts_when_more_was_written_meanwhile",),
    ),
    Fault(
        name="duplicate-answered-early",
        says="a retry of a batch that is not on disk yet is acknowledged at once",
        file="replica/leader.py",
        old="original.base_offset, append_time_ms, original.last_offset + 1)",
        new="original.base_offset, append_time_ms, 0)",
        caught_by=(GUARDS + "test_a_repeated_batch_waits_for_the_disk_as_the_first_did",),
    ),
    Fault(
        name="commit-before-store",
        says="offset commits are acknowledged before they are in the store",
        file="group/shard_writer.py",
        old="        self._queue.wake(self)\n        return done\n",
        new="        self._queue.wake(self)\n        done.set_result([])\n        return done\n",
        caught_by=(
            GROUPS + "test_offsets.py::test_nothing_is_applied_before_the_store_has_it",
            GROUPS + "test_offsets.py::test_a_commit_is_in_the_store_when_it_is_answered_and_survives_a_restart",
        ),
    ),
    Fault(
        name="shard-epoch-uncompared",
        says="a coordinator that lost its shard still commits offsets",
        file="group/shard_writer.py",
        old="        return [*self.ownership_compares(), fence]\n",
        new="        return [fence]\n",
        caught_by=(
            GROUPS + "test_shards.py::test_a_coordinator_that_lost_its_shard_cannot_commit",
            GROUPS + "test_shards.py::test_a_coordinator_that_lost_its_shard_hands_out_no_assignment",
        ),
    ),
    Fault(
        name="shard-unconfirmed",
        says="a coordinator that lost its shard still returns committed offsets",
        file="group/ownership.py",
        old=" or revisions.get(number, 0) == shard.guard.revision:\n",
        new=" or True:\n",
        caught_by=(GROUPS + "test_shards.py::test_a_coordinator_that_lost_its_shard_tells_no_offsets",),
    ),
    Fault(
        name="late-write-not-fenced",
        says="a write without a response may revert a write that was acknowledged after it",
        file="group/shard_writer.py",
        old="        self.is_fence_stale = True\n",
        new="        pass\n",
        caught_by=(
            GROUPS + "test_shard_offsets.py::test_a_write_without_an_answer_cannot_undo_what_was_acknowledged_later",
        ),
    ),
    Fault(
        name="lock-not-taken",
        says="two processes can use one data directory",
        file="log/opening.py",
        old='        files.lock(f"{path}/{LOCK_NAME}")\n',
        new="        pass\n",
        caught_by=(GUARDS + "test_a_directory_that_is_open_cannot_be_opened_again",),
    ),
    Fault(
        name="index-off-by-one",
        says="index entries have the offset before the one at their position",
        file="log/index.py",
        old="        self.offsets.add(relative_offset, position)\n",
        new="        self.offsets.add(max(relative_offset - 1, 0), position)\n",
        caught_by=(GUARDS + "test_a_read_at_any_offset_begins_with_the_batch_that_holds_it",),
    ),
    Fault(
        name="retention-past-high-watermark",
        says="retention deletes segments above the high watermark",
        file="log/retention.py",
        old="        if segment.end_offset > limit_offset:\n",
        new="        if False:\n",
        caught_by=(GUARDS + "test_retention_never_drops_what_is_not_below_the_high_watermark",),
    ),
    Fault(
        name="snapshot-not-written",
        says="checkpoints lack the producer state, so that a retry after a restart is written again",
        file="log/capture.py",
        old='        log.state.snapshot() if log.end_offset else b"",\n',
        new='        b"",\n',
        caught_by=(GUARDS + "test_a_batch_that_is_repeated_after_a_clean_restart_is_still_a_duplicate",),
    ),
    Fault(
        name="producers-not-replayed",
        says="recovery does not restore the producer state after the last checkpoint",
        file="replica/producer_state.py",
        old="        if header.producer_id >= 0:\n            self.update(header)\n",
        new="        pass\n",
        caught_by=(GUARDS + "test_a_batch_that_is_repeated_after_a_kill_is_still_a_duplicate",),
    ),
    Fault(
        name="later-batch-taken-first",
        says="a new producer's second batch is accepted although its first, then always out of order, was rejected",
        file="replica/manager.py",
        old="        self.rejected_batches.record(topic, index, batch, code, self.clock.boot_ms())\n",
        new="",
        caught_by=(
            "broker/tests/api/test_produce.py::"
            "test_what_was_sent_behind_a_batch_for_a_topic_not_known_yet_waits_for_it",
        ),
    ),
    Fault(
        name="deferred-batch-overtaken",
        says="a producer's batch is appended while batches before it wait for the verification of their transaction",
        file="api/transactional_produce.py",
        old="        if queues.queues and queue_key(partition, header) in queues:\n",
        new="        if False:\n",
        caught_by=(
            "broker/tests/txn/test_order.py::test_batches_that_arrive_in_any_turn_of_the_loop_are_appended_in_order",
        ),
    ),
    Fault(
        name="size-unbounded",
        says="batches larger than max.message.bytes are accepted",
        file="wire/batch_check.py",
        old="    if size > max_message_bytes:\n",
        new="    if False:\n",
        caught_by=(GUARDS + "test_a_batch_larger_than_the_topic_allows_is_refused",),
    ),
    Fault(
        name="partial-write-kept",
        says="the part of a batch that was written before the disk was full stays in the file",
        file="log/partition_log.py",
        old="                file.truncate(active.size)\n",
        new="                pass\n",
        caught_by=(GUARDS + "test_a_batch_that_did_not_fit_leaves_nothing_behind",),
    ),
    Fault(
        name="directories-unsynced",
        says="batches are acknowledged before the directory entry of their file is synced",
        file="log/transient_errors.py",
        old="    wait_for_descriptor(files.sync_dir, path)\n",
        new="    pass\n",
        caught_by=(
            IMAGES + "test_all_that_was_acknowledged_survives_a_crash_at_any_step",
            FLUSH + "test_nothing_is_flushed_before_its_file_and_its_directories_are_synced",
        ),
    ),
    Fault(
        name="swaps-not-finished",
        says="recovery does not complete an interrupted compaction",
        file="log/recovery.py",
        old="        finish_swaps(files, directory, checkpoint.sequence)\n",
        new="",
        caught_by=(
            "broker/tests/log/test_compaction.py::"
            "test_a_crash_at_any_step_of_a_compaction_finds_the_old_segments_or_the_new",
        ),
    ),
    Fault(
        name="fsync-error-ignored",
        says="a failed fdatasync counts as successful",
        file="log/flusher.py",
        old="            self.fail(error)\n            return\n",
        new="            pass\n",
        caught_by=(
            GUARDS + "test_a_failed_fdatasync_fails_who_waits_and_stops_the_log_for_good",
            FLUSH + "test_a_failed_sync_fails_every_waiter_and_is_never_tried_again",
        ),
    ),
    Fault(
        name="log-goes-on-after-failed-fsync",
        says="a log accepts batches after a failed fdatasync",
        file="log/partition_log.py",
        old="            self.failed = error\n",
        new="",
        caught_by=(GUARDS + "test_a_failed_fdatasync_fails_who_waits_and_stops_the_log_for_good",),
    ),
    Fault(
        name="relay-without-sequence",
        says="what is sent to a sealed partition is relayed again if an answer is lost",
        file="shrink/relay_state.py",
        old="    fields[9:12] = state.producer_id, state.producer_epoch, state.sequence\n",
        new="    fields[9:12] = -1, -1, -1\n",
        caught_by=(SEALS + "test_a_batch_whose_answer_is_lost_is_relayed_once",),
    ),
    Fault(
        name="seal-before-high-watermark",
        says="a partition is sealed at an offset that a new leader may not have",
        file="shrink/sealed_partition.py",
        old="        if leader.high_watermark < offset:\n",
        new="        if False:\n",
        caught_by=(SEALS + "test_a_seal_is_stored_only_once_all_below_it_is_committed",),
    ),
)

FAULTS = (*CORE, *MORE, *REPORTED, *SECURITY)


def table() -> str:
    """Return the faults as a Markdown table."""
    rows = ["| Fault | What goes wrong | Where | Noticed by |", "| --- | --- | --- | --- |"]
    for fault in FAULTS:
        tests = "<br>".join(f"`{test.replace('::', ' ')}`" for test in fault.caught_by)
        rows.append(f"| `{fault.name}` | {fault.says} | `{fault.place}` | {tests} |")
    return "\n".join(rows) + "\n"
