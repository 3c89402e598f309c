"""Tables and documents of brokers and moves. Used by `penstock cluster` and `penstock broker`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.cli.cluster_snapshot import BrokerSummary, ClusterSnapshot, MovePlan
from penstock.cli.output import Cell, print_table, size_text
from penstock.placement.model import Move

SHOWN_MOVES = 50
"""Rows of a table; --output json has all."""


def state_of(broker: BrokerSummary) -> str:
    """What a broker is about, in a word or two."""
    if broker.error is not None:
        return "silent"
    if broker.failed_dirs:
        return "disk failed"
    if broker.is_draining:
        return "removable" if broker.is_removable else "draining"
    return "serving"


def brokers_table(picture: ClusterSnapshot) -> None:
    """All brokers, with what they hold; also those that hold replicas and are not there."""
    held, led = picture.held(), picture.led()
    rows: list[Sequence[Cell]] = [
        (
            str(b.broker_id),
            b.address,
            "/".join(b.domain) or None,
            state_of(b),
            led[b.broker_id],
            held[b.broker_id],
            size_text(b.data_bytes) if b.error is None else "-",
            size_text(b.free_bytes),
        )
        for b in sorted(picture.brokers.values(), key=lambda b: b.broker_id)
    ]
    rows += [(str(b), None, None, "not there", led[b], count, "-", "-") for b, count in picture.missing().items()]
    print_table(("broker", "address", "domain", "state", "leads", "replicas", "data", "free"), rows)


def broker_document(picture: ClusterSnapshot, broker: BrokerSummary) -> dict[str, object]:
    return {
        "broker_id": broker.broker_id,
        "address": broker.address,
        "failure_domain": "/".join(broker.domain),
        "state": state_of(broker),
        "draining": broker.is_draining,
        "removable": broker.is_removable,
        "is_controller": broker.broker_id == picture.cluster.controller_id,
        "leads": picture.led()[broker.broker_id],
        "replicas": picture.held()[broker.broker_id],
        "data_bytes": broker.data_bytes,
        "free_bytes": broker.free_bytes if broker.free_bytes >= 0 else None,
        "failed_log_dirs": list(broker.failed_dirs),
        "throttles": dict(broker.bounds),
        "error": broker.error,
    }


def throttles_lines(picture: ClusterSnapshot) -> list[str]:
    """A line for each bound that is set: one that was forgotten holds up replicas that fell behind."""
    found: dict[tuple[str, str], list[int]] = {}
    for broker in picture.brokers.values():
        for name, value in broker.bounds.items():
            found.setdefault((name, value), []).append(broker.broker_id)
    return [f"throttled: {name}={value} on broker {brokers_text(b)}" for (name, value), b in sorted(found.items())]


def brokers_text(brokers: Collection[int]) -> str:
    return ",".join(map(str, brokers))


def moves_table(picture: ClusterSnapshot, plan: MovePlan) -> None:
    """The moves: data first, then those of leaders alone."""
    moves = sorted(plan.moves, key=lambda move: (not move.moves_data, move.key))
    rows = [
        (
            f"{move.key.topic}-{move.key.partition}",
            f"{brokers_text(move.before)} → {brokers_text(move.after)}",
            size_text(picture.bytes_of(move)) if move.moves_data else "leader only",
        )
        for move in moves[:SHOWN_MOVES]
    ]
    print_table(("partition", "replicas", "copies"), rows)
    if len(moves) > SHOWN_MOVES:
        print(f"and {len(moves) - SHOWN_MOVES:,} more: --output json shows all")


def move_document(picture: ClusterSnapshot, move: Move) -> dict[str, object]:
    return {
        "topic": move.key.topic,
        "partition": move.key.partition,
        "before": list(move.before),
        "after": list(move.after),
        "bytes": picture.bytes_of(move),
    }


def under_way_table(picture: ClusterSnapshot) -> None:
    """What is being moved now; nothing where nothing is."""
    if not picture.under_way:
        return
    rows = [
        (
            str(tp),
            f"{brokers_text(change.original)} → {brokers_text(change.target)}",
            size_text(picture.sizes.get(tp, 0)),
        )
        for tp, change in sorted(picture.under_way.items())
    ]
    print_table(("being moved", "replicas", "size"), rows[:SHOWN_MOVES])
    if len(rows) > SHOWN_MOVES:
        print(f"and {len(rows) - SHOWN_MOVES:,} more")
