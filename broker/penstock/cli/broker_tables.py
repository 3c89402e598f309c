"""Tables and JSON documents of brokers and moves. Used by `penstock cluster` and `penstock broker`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.cli.cluster_snapshot import BrokerSummary, ClusterSnapshot, MovePlan
from penstock.cli.output import Cell, print_table, size_text
from penstock.placement.model import Move

MAX_SHOWN_MOVES = 50
"""Rows of a table. `--output json` has all."""


def broker_state(broker: BrokerSummary) -> str:
    """Return the broker's state for tables and JSON."""
    if broker.error is not None:
        return "silent"
    if broker.failed_dirs:
        return "disk failed"
    if broker.is_draining:
        return "removable" if broker.is_removable else "draining"
    return "serving"


def print_brokers(snapshot: ClusterSnapshot) -> None:
    """Print all brokers, including missing ones that hold replicas."""
    replicas, leaders = snapshot.replica_counts(), snapshot.leader_counts()
    rows: list[Sequence[Cell]] = [
        (
            str(b.broker_id),
            b.address,
            "/".join(b.domain) or None,
            broker_state(b),
            leaders[b.broker_id],
            replicas[b.broker_id],
            size_text(b.data_bytes) if b.error is None else "-",
            size_text(b.free_bytes),
        )
        for b in sorted(snapshot.brokers.values(), key=lambda b: b.broker_id)
    ]
    rows += [(str(b), None, None, "missing", leaders[b], n, "-", "-") for b, n in snapshot.missing_brokers().items()]
    print_table(("broker", "address", "domain", "state", "leads", "replicas", "data", "free"), rows)


def broker_document(snapshot: ClusterSnapshot, broker: BrokerSummary) -> dict[str, object]:
    """Return a broker's entry in the JSON output."""
    return {
        "broker_id": broker.broker_id,
        "address": broker.address,
        "failure_domain": "/".join(broker.domain),
        "state": broker_state(broker),
        "draining": broker.is_draining,
        "removable": broker.is_removable,
        "is_controller": broker.broker_id == snapshot.cluster.controller_id,
        "leads": snapshot.leader_counts()[broker.broker_id],
        "replicas": snapshot.replica_counts()[broker.broker_id],
        "data_bytes": broker.data_bytes,
        "free_bytes": broker.free_bytes if broker.free_bytes >= 0 else None,
        "failed_log_dirs": list(broker.failed_dirs),
        "throttles": dict(broker.bounds),
        "error": broker.error,
    }


def throttle_lines(snapshot: ClusterSnapshot) -> list[str]:
    """Return a line for each throttle that is set: a forgotten one slows down replicas that catch up."""
    found: dict[tuple[str, str], list[int]] = {}
    for broker in snapshot.brokers.values():
        for name, value in broker.bounds.items():
            found.setdefault((name, value), []).append(broker.broker_id)
    return [f"throttled: {name}={value} on broker {join_ids(b)}" for (name, value), b in sorted(found.items())]


def join_ids(brokers: Collection[int]) -> str:
    """Join broker ids with commas."""
    return ",".join(map(str, brokers))


def print_moves(snapshot: ClusterSnapshot, plan: MovePlan) -> None:
    """Print planned moves: those that copy data first, then leader changes."""
    moves = sorted(plan.moves, key=lambda move: (not move.moves_data, move.key))
    rows = [
        (
            f"{move.key.topic}-{move.key.partition}",
            f"{join_ids(move.before)} → {join_ids(move.after)}",
            size_text(snapshot.move_bytes(move)) if move.moves_data else "leader only",
        )
        for move in moves[:MAX_SHOWN_MOVES]
    ]
    print_table(("partition", "replicas", "copies"), rows)
    if len(moves) > MAX_SHOWN_MOVES:
        print(f"and {len(moves) - MAX_SHOWN_MOVES:,} more; show all with --output json")


def move_document(snapshot: ClusterSnapshot, move: Move) -> dict[str, object]:
    """Return a move's entry in the JSON output."""
    return {
        "topic": move.key.topic,
        "partition": move.key.partition,
        "before": list(move.before),
        "after": list(move.after),
        "bytes": snapshot.move_bytes(move),
    }


def print_reassignments(snapshot: ClusterSnapshot) -> None:
    """Print running reassignments, if any."""
    if not snapshot.reassignments:
        return
    rows = [
        (
            str(tp),
            f"{join_ids(change.original)} → {join_ids(change.target)}",
            size_text(snapshot.sizes.get(tp, 0)),
        )
        for tp, change in sorted(snapshot.reassignments.items())
    ]
    print_table(("reassigning", "replicas", "size"), rows[:MAX_SHOWN_MOVES])
    if len(rows) > MAX_SHOWN_MOVES:
        print(f"and {len(rows) - MAX_SHOWN_MOVES:,} more")
