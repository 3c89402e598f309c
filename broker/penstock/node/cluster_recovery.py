"""The store side of `penstock cluster recover`: shows the plan for a restored store and carries it out.

Called by the command line, which does not access the store itself: it gets a document, shows it, and confirms.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import Any

from penstock.config.options import UpOptions
from penstock.control.restored.plan import CannotRecover, PartitionStep
from penstock.control.restored.recovery import PreparedRecovery, prepare, recover
from penstock.node.settings import StartError, etcd_of
from penstock.state import keys
from penstock.state.store import Store, StoreError, StoreUnavailable

POLL_S = 1.0
"""Interval between checks for the reports of brokers."""


NOTHING_TO_RECOVER = (
    "nothing to recover: no broker has detected that this etcd was restored from a backup. Brokers detect it at startup"
    " or within seconds"
)


class RecoveryFailed(Exception):
    """The recovery is not possible or failed; the message says why and what to do."""


async def recover_cluster(
    options: UpOptions,
    without: Collection[int],
    confirm: Callable[[dict[str, Any]], bool],
    progress: Callable[[int, int], None],
    *,
    required: Collection[int] = (),
    wait_s: float = 0.0,
) -> int | None:
    """Plan the recovery and carry it out if `confirm` returns true for the plan; return the new controller epoch.

    `options` has the etcd endpoints. Waits up to `wait_s` seconds until the brokers `required` have reported. Raises
    `RecoveryFailed`.
    """
    try:
        etcd = etcd_of(options)
        assert etcd is not None, "there is an etcd to recover"
        from penstock.state.etcd.store import EtcdStore

        store = EtcdStore(etcd)
        try:
            if required or wait_s:
                await wait_for_reports(store, required, wait_s)
            return await recover_store(store, without, confirm, progress)
        finally:
            await store.close()
    except (StartError, StoreError, CannotRecover) as e:
        raise RecoveryFailed(str(e)) from e


async def recover_store(
    store: Store,
    without: Collection[int],
    confirm: Callable[[dict[str, Any]], bool],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> int | None:
    """Recover an open store; see `recover_cluster`. Raises `CannotRecover`, `StoreError`."""
    prepared = await prepare(store, without)
    if prepared is None:
        raise CannotRecover(NOTHING_TO_RECOVER)
    return await recover(store, prepared, progress) if confirm(document(prepared)) else None


async def wait_for_reports(store: Store, required: Collection[int], wait_s: float) -> None:
    """Wait until the restore is detected and the brokers have reported. Raises `CannotRecover` after `wait_s` seconds,
    `StoreError`."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            is_marked = await store.get(keys.RESTORED) is not None
            missing = [number for number in sorted(set(required)) if await store.get(keys.report(number)) is None]
            if is_marked and not missing:
                return
            problem = f"broker {', '.join(map(str, missing))} has not reported its replicas; start it"
            problem = problem if is_marked else NOTHING_TO_RECOVER
        except StoreUnavailable as e:
            problem = str(e)
        if time.monotonic() >= deadline:
            raise CannotRecover(problem)
        await asyncio.sleep(POLL_S)


def document(prepared: PreparedRecovery) -> dict[str, Any]:
    """Return the plan as JSON values."""
    mark, found, plan = prepared.mark, prepared.found, prepared.plan
    return {
        "found_by": mark.found_by,
        "reason": mark.reason,
        "since_ms": mark.since_ms,
        "controller_epoch": found.epoch,
        "new_controller_epoch": plan.epoch,
        "brokers": [
            {
                "broker": broker_id,
                "seen_epoch": report.epoch,
                "seen_revision": report.revision,
                "seen_etcd": report.store_id,
                "replicas": len(replicas),
            }
            for broker_id, (report, replicas) in sorted(found.reports.items())
        ],
        "awaited": plan.awaited,
        "partitions": [partition(step, found.names.get(step.key[0], "")) for step in plan.steps],
        "unknown": [
            {
                "topic": unknown.topic,
                "topic_id": str(unknown.key[0]),
                "partition": unknown.key[1],
                "broker": unknown.broker_id,
                "end_offset": unknown.end_offset,
            }
            for unknown in plan.unknown
        ],
    }


def partition(step: PartitionStep, topic: str) -> dict[str, Any]:
    """Return one partition's step as JSON values."""
    return {
        "topic": topic,
        "topic_id": str(step.key[0]),
        "partition": step.key[1],
        "replicas": step.before.replicas,
        "isr": step.before.isr,
        "leader_epoch": step.before.leader_epoch,
        "new_leader_epoch": step.after.leader_epoch,
        "waits_for": step.after.last_isr,
        "added": step.added,
        "missing": step.missing,
        "may_lose": step.may_lose,
        "log_ends": {str(broker): {"epoch": end[0], "offset": end[1]} for broker, end in sorted(step.ends.items())},
    }
