"""Flink's exactly-once sink: a job that copies a topic loses and duplicates nothing while it and brokers are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from penstock_e2e.process import Application, wait_until
from penstock_e2e.trio import Trio
from penstock_java import applications

RECORDS = 4_000
PROGRESS_LIMIT_S = 120.0


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest completed checkpoint of all runs of the job."""
    complete = [path.parent for path in folder.glob("*/chk-*/_metadata")]
    return max(complete, key=lambda path: path.stat().st_mtime_ns, default=None)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("naming", "victim"), [("INCREMENTING", "coordinator"), ("POOLING", "leader")])
@pytest.mark.xdist_group("java-applications")
def test_a_job_that_is_killed_and_restored_copies_each_record_once_while_a_broker_is_killed(
    brokers_to_kill: Trio, flink: str, naming: str, victim: str, round_number: int, tmp_path: Path
) -> None:
    """Every second round exchanges the two victims."""
    if round_number % 2 == 0:
        victim = {"leader": "coordinator", "coordinator": "leader"}[victim]
    run = f"{naming.lower()}-{victim}-{round_number}"
    source, target = f"flink-in-{run}", f"flink-out-{run}"
    brokers_to_kill.create_topics(source, target)
    brokers_to_kill.produce(source, [(None, str(number), 0) for number in range(RECORDS)])
    checkpoints = tmp_path / "checkpoints"
    arguments = [brokers_to_kill.bootstrap, source, target, str(checkpoints), naming]

    def start(*more: str) -> Application:
        return applications.start(
            flink, "CopyJob", [*arguments, *more], tmp_path / "flink.log", applications.FLINK_FLAGS
        )

    with start() as job:
        wait_until(
            "a checkpoint and a quarter of the records",
            lambda: newest_checkpoint(checkpoints) is not None and brokers_to_kill.size(target) > RECORDS // 4,
            PROGRESS_LIMIT_S,
            job,
        )
        job.kill()
    checkpoint = newest_checkpoint(checkpoints)
    assert checkpoint is not None
    with start(str(checkpoint)) as job:
        copied = brokers_to_kill.size(target)
        wait_until(
            "the restored job to go on", lambda: brokers_to_kill.size(target) > copied + 200, PROGRESS_LIMIT_S, job
        )
        if victim == "leader":
            killed = brokers_to_kill.kill_leader(target)
        else:
            killed = brokers_to_kill.kill_transaction_coordinator(f"copy-{target}")
        brokers_to_kill.brokers[killed].start()
        wait_until(
            "every record to be committed",
            lambda: len(brokers_to_kill.read_committed(target)) >= RECORDS,
            PROGRESS_LIMIT_S,
            job,
        )
    counts = Counter(value for _, value in brokers_to_kill.read_committed(target))
    assert {value: count for value, count in counts.items() if count > 1} == {}
    assert set(counts) == {str(number) for number in range(RECORDS)}
