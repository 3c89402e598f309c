"""`penstock cluster recover`, as far as it needs the store: what would be done to one that was restored, and doing it.

Called by the command line, which knows nothing of the store: it gets a document, shows it, and says go or no.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from penstock.config.options import UpOptions
from penstock.control.restored.plan import CannotRecover, PartitionStep
from penstock.control.restored.recovery import PreparedRecovery, prepare, recover
from penstock.node.settings import StartError, etcd_of
from penstock.state.store import Store, StoreError


class RecoveryFailed(Exception):
    """It cannot be, or did not work; the message says why and what to do."""


async def recover_cluster(
    options: UpOptions,
    without: Collection[int],
    decide: Callable[[dict[str, Any]], bool],
    progress: Callable[[int, int], None],
) -> int | None:
    """Has `decide` look at what would be done, and does it if that says so; returns the new controller epoch then.

    `options` names the etcd. Raises `RecoveryFailed`.
    """
    try:
        etcd = etcd_of(options)
        assert etcd is not None, "there is an etcd to recover"
        from penstock.state.etcd.store import EtcdStore

        store = EtcdStore(etcd)
        try:
            return await recover_store(store, without, decide, progress)
        finally:
            await store.close()
    except (StartError, StoreError, CannotRecover) as e:
        raise RecoveryFailed(str(e)) from e


async def recover_store(
    store: Store,
    without: Collection[int],
    decide: Callable[[dict[str, Any]], bool],
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> int | None:
    """As above. Raises `CannotRecover`, `StoreError`."""
    prepared = await prepare(store, without)
    if prepared is None:
        raise CannotRecover(
            "nothing is to be recovered: no broker has found that this etcd was restored from a backup. Brokers find"
            " out by themselves, when they start or within seconds"
        )
    return await recover(store, prepared, progress) if decide(document(prepared)) else None


def document(prepared: PreparedRecovery) -> dict[str, Any]:
    """What was found and what is to be done, as JSON has it."""
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
    """One partition before and after."""
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
