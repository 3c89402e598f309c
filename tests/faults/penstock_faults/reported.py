"""Faults that users of comparable systems reported and that Penstock once had; its own tests must detect each."""

from __future__ import annotations

from penstock_faults.planting import SPARK, Fault

API = "broker/tests/api/"
MOVING = "broker/tests/control/controller/test_moving.py::"
JOBS = "spark_jobs/tests/jobs/"
DLQ = JOBS + "test_dlq_replay.py::"

REPORTED = (
    Fault(
        name="loading-ends-heartbeats",
        says="heartbeats get an error that consumers do not expect while a coordinator is loading",
        file="group/coordinator.py",
        old="            return ErrorCode.NONE if is_group_id(group_id) else ErrorCode.INVALID_GROUP_ID\n",
        new="            return error\n",
        caught_by=(
            "broker/tests/group/test_shards.py::test_until_a_shard_is_loaded_clients_wait_and_members_stay",
            "broker/tests/txn/test_passing_states.py"
            "::test_passing_states_are_answered_as_clients_of_each_api_know_them",
        ),
    ),
    Fault(
        name="own-writes-hidden",
        says="the latest offset is below the offset of a record that was acknowledged to the same client",
        file="api/log_queries.py",
        old="                            unflushed.add(self.replicas.find(topic.name, requested.partition_index))\n",
        new="                            pass\n",
        caught_by=(API + "test_own_writes.py::test_the_latest_offset_is_behind_what_was_acknowledged",),
    ),
    Fault(
        name="failure-told-as-success",
        says="a rejected UpdateFeatures has no error at the level that clients read",
        file="api/features.py",
        old="            return refused(e.error, e.message)\n",
        new="            return UpdateFeaturesResponse()\n",
        caught_by=(API + "test_features.py::test_one_bad_update_is_the_error_of_the_whole_response",),
    ),
    Fault(
        name="internal-topics-created",
        says="topics with reserved names of Kafka can be created",
        file="control/naming.py",
        old="    if name in INTERNAL_TOPICS:\n",
        new="    if False:\n",
        caught_by=(
            API + "test_internal_topics.py::test_creation_is_refused",
            API + "test_internal_topics.py::test_auto_creation_of_it_is_refused_too",
        ),
    ),
    Fault(
        name="records-unchecked",
        says="batches whose records no consumer can read are stored",
        file="replica/inspection.py",
        old="        refusal = check_records(data, header, config, topic)\n",
        new="        refusal = None\n",
        caught_by=(
            "broker/tests/replica/test_inspection.py::test_records_that_are_not_what_the_header_says_are_found",
        ),
    ),
    Fault(
        name="deleted-partitions-kept",
        says="a deleted partition stays in memory until its retention time has passed",
        file="log/retention.py",
        old="\n".join(
            (
                '        """Stop checking a log that is closed or deleted."""',
                "        self.due.discard(log)",
                "",
            )
        ),
        new='        """Stop checking a log that is closed or deleted."""\n',
        caught_by=("tests/soak/test_soak.py::test_after_churn_of_everything_as_many_objects_are_alive_as_before",),
    ),
    Fault(
        name="brokers-away-get-nothing",
        says="a topic cannot be created while one of its brokers restarts",
        file="control/broker_availability.py",
        old="if entry.key.startswith(keys.BROKER_CONFIGS)], absent)\n",
        new="if entry.key.startswith(keys.BROKER_CONFIGS)])\n",
        caught_by=(
            MOVING + "test_a_topic_gets_a_replica_on_a_broker_that_restarts_where_the_others_do_not_suffice",
            MOVING + "test_partitions_are_added_with_all_replicas_while_a_broker_restarts",
        ),
    ),
    Fault(
        name="expired-id-fenced",
        says="a producer whose transactional id has expired is fenced",
        file="txn/state_machine.py",
        old='        assert new_id is not None, "a new transactional id gets a producer id"\n',
        new="        if claimed is not None or new_id is None:\n"
        "            return TxnTransition(ErrorCode.PRODUCER_FENCED)\n",
        caught_by=(
            "broker/tests/txn/test_state_machine.py"
            "::test_an_unknown_transactional_id_gets_the_new_producer_id_with_epoch_0",
            "broker/tests/txn/test_unknown_ids.py"
            "::test_a_producer_whose_transactional_id_has_expired_goes_on_after_it_was_initialized",
        ),
    ),
    Fault(
        name="stops-without-moving",
        says="a stopping broker does not hand over its leaderships and coordinators before it stops",
        file="node/clustered.py",
        old="        if await self.member.request_handover():\n            await asyncio.sleep(REDIRECT_S)\n",
        new="",
        caught_by=("broker/tests/node/test_restarts.py::test_a_restarting_broker_is_named_only_while_it_answers",),
    ),
    Fault(
        name="named-until-closed",
        says="a stopping broker closes its port while other brokers still name it",
        file="node/clustered.py",
        old="                if own_id not in named:\n",
        new="                if True:\n",
        caught_by=(
            "broker/tests/node/test_leaving.py::test_the_wait_lasts_until_every_other_broker_has_dropped_the_name",
        ),
    ),
    Fault(
        name="dead-coordinator-unnamed",
        says="metadata drops a broker when it dies, and librdkafka loses the requests that wait for its coordinator",
        file="api/known_brokers.py",
        old="            if broker_id not in self._view.brokers and broker_id in owners:\n",
        new="            if False:\n",
        caught_by=(API + "test_known_brokers.py::test_a_dead_coordinator_stays_named_as_long_as_on_kafka",),
    ),
    Fault(
        name="stopped-broker-named",
        says="metadata names a broker that has stopped cleanly, and clients try to connect to it",
        file="api/known_brokers.py",
        old="            if broker_id not in self._view.brokers and broker_id in owners:\n",
        new="            if broker_id not in self._view.brokers:\n",
        caught_by=(API + "test_known_brokers.py::test_a_broker_that_handed_its_shards_over_is_no_longer_named",),
    ),
    Fault(
        name="letter-to-gone-topic",
        says="dlq-replay always fails at a dead letter whose topic was deleted",
        file="jobs/kinds/dlq_replay.py",
        old='            F.col("name").isNull() | F.col("problem").isNotNull(),\n',
        new="            F.lit(False),\n",
        caught_by=(DLQ + "test_letters_that_cannot_be_replayed_are_skipped_and_named_and_the_others_are_replayed",),
        package=SPARK,
    ),
    Fault(
        name="letter-without-key",
        says="dlq-replay always fails at a dead letter without a key for a compacted topic",
        file="jobs/kinds/dlq_replay.py",
        old='            F.col("is_compacted") & F.col("key").isNull(),\n',
        new="            F.lit(False),\n",
        caught_by=(DLQ + "test_letters_that_cannot_be_replayed_are_skipped_and_named_and_the_others_are_replayed",),
        package=SPARK,
    ),
    Fault(
        name="letter-too-large",
        says="dlq-replay always fails at a dead letter that is larger than its topic permits",
        file="jobs/kinds/dlq_replay.py",
        old='replayed_headers()) > F.col("max_bytes"),',
        new="replayed_headers()) < F.lit(0),",
        caught_by=(DLQ + "test_letters_that_cannot_be_replayed_are_skipped_and_named_and_the_others_are_replayed",),
        package=SPARK,
    ),
    Fault(
        name="quotes-not-doubled",
        says="backfill misreads doubled quotes in CSV files",
        file="jobs/kinds/backfill.py",
        old='    "escape": \'"\',\n',
        new="",
        caught_by=(JOBS + "test_backfill.py::test_csv_is_read_as_rfc_4180_has_it_in_every_folder_below",),
        package=SPARK,
    ),
    Fault(
        name="tags-taken",
        says="a job file may have YAML tags without a meaning for jobs",
        file="jobs/spec/document.py",
        old='ALLOWED_TAGS = frozenset({"map",',
        new='ALLOWED_TAGS = frozenset({"binary", "set", "omap", "map",',
        caught_by=(JOBS + "test_document.py::test_a_tag_that_means_nothing_in_a_job_is_a_problem",),
        package=SPARK,
    ),
    Fault(
        name="null-condition-holds-neither-way",
        says="a row for which a job's condition is NULL is lost",
        file="jobs/spec/conditions.py",
        old='F.coalesce(F.expr(sql).cast("boolean"), F.lit(False))',
        new='F.expr(sql).cast("boolean")',
        caught_by=(JOBS + "test_null_in_expressions.py::test_a_condition_that_is_null_does_not_hold",),
        package=SPARK,
    ),
    Fault(
        name="tombstone-brings-row-back",
        says="the tombstone after a deletion restores the row with all columns NULL",
        file="jobs/kinds/cdc_upsert.py",
        old="    deleted = (is_tombstone | conditions.holds(job.delete_when)).alias(DELETED)\n",
        new="    deleted = conditions.holds(job.delete_when).alias(DELETED)\n",
        caught_by=(
            JOBS + "test_changes_of_a_database.py::test_a_tombstone_deletes_whatever_the_condition_makes_of_it",
        ),
        package=SPARK,
    ),
)
