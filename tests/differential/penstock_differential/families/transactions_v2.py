"""Transactions v2 (KIP-890, part 2): batches and offsets that add themselves, and ends that raise the epoch."""

from __future__ import annotations

from penstock_differential.case import Case
from penstock_differential.families import family
from penstock_differential.families.transactions import (
    STEPS,
    batch,
    init_tree,
    offset_commit_tree,
    wait_until_ended,
)
from penstock_differential.families.world import init_producer, read_back, topic
from penstock_differential.values import Ref, Tree

PRODUCE_VERSION, COMMIT_VERSION, END_VERSION, OLD_END_VERSION = 12, 5, 5, 4
NEXT = {"next": "producer_id", "next-epoch": "producer_epoch"}


def take_identity(case: Case) -> None:
    """Let each side continue with the producer id and epoch of its last answer."""
    for side in case.sides:
        side.assigned["p"], side.assigned["p-epoch"] = side.assigned["next"], side.assigned["next-epoch"]


def end_tree(id_: str, epoch: int | Ref, committed: bool) -> Tree:
    """Return an EndTxn request."""
    return {"transactional_id": id_, "producer_id": Ref("p"), "producer_epoch": epoch, "committed": committed}


@family("InitProducerId", "EndTxn", "TxnOffsetCommit", "Produce", "DescribeTransactions", weight=8)
def transactions_v2(case: Case) -> None:
    """One producer of transactions v2: valid and stale requests in any order, and what readers receive."""
    name, id_ = topic(case), f"{case.prefix}-x"
    group = f"{case.prefix}-g"
    init_producer(case, id_)
    sequence = 0
    for _ in range(STEPS):
        kind = case.rng.choice(["produce", "produce", "produce", "end", "end", "commit", "describe", "init"])
        epoch: Ref = Ref("p-epoch", case.rng.choice([0] * 6 + [-1, -1, 1]))
        stale = int(epoch.plus != 0)
        if kind == "produce":
            tree = batch(name, epoch, 0 if epoch.plus else sequence, id_)
            answer = case.ask("Produce", tree, PRODUCE_VERSION)
            if answer["responses"][0]["partition_responses"][0]["error_code"]:
                case.events.add("a transactional batch was refused")
            elif not epoch.plus:
                sequence += 2
        elif kind == "end":
            sequence = end(case, id_, epoch, sequence)
        elif kind == "commit":
            tree = offset_commit_tree(id_, group, name, epoch)
            tree = case.mutate("TxnOffsetCommit", COMMIT_VERSION, tree, keep={"group_id"}, odds=0.2, faults=stale)
            case.ask("TxnOffsetCommit", tree, COMMIT_VERSION)
        elif kind == "describe":
            case.ask("DescribeTransactions", {"transactional_ids": [id_]})
        else:
            case.ask("InitProducerId", init_tree(id_), 5, learn=NEXT)
            take_identity(case)
            sequence = 0
    case.ask("OffsetFetch", {"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}]}, 5)
    read_back(case, name)


def end(case: Case, id_: str, epoch: Ref, sequence: int) -> int:
    """End a transaction, perhaps again as after a lost answer. Returns the next sequence number."""
    version = case.rng.choice([END_VERSION] * 4 + [OLD_END_VERSION])
    committed = case.rng.random() < 0.6
    tree = case.mutate("EndTxn", version, end_tree(id_, epoch, committed), odds=0.15, faults=int(epoch.plus != 0))
    if version == OLD_END_VERSION:
        if not case.ask("EndTxn", tree, version)["error_code"]:
            case.events.add("a transaction ended without a new epoch")
        wait_until_ended(case, id_)
        return sequence
    answer = case.ask("EndTxn", tree, version, learn=NEXT)
    wait_until_ended(case, id_)
    if answer["error_code"]:
        return sequence
    if case.rng.random() < 0.4:
        case.ask("EndTxn", {**tree, "committed": committed if case.rng.random() < 0.7 else not committed}, version)
        wait_until_ended(case, id_)
    take_identity(case)
    return 0
