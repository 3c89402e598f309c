"""Transactions: ids and epochs of producers, adding partitions and offsets, writing records, ending, and fencing."""

from __future__ import annotations

import time

from penstock_differential.case import Case
from penstock_differential.compare import error_codes
from penstock_differential.families import family
from penstock_differential.families.world import (
    init_producer,
    produce_tree,
    read_back,
    records,
    topic,
)
from penstock_differential.sides import Route
from penstock_differential.values import BatchSpec, Ref, Tree

STEPS = 14
ENDED_LIMIT_S, POLL_S = 10.0, 0.01


def init_tree(name: str | None, producer: int | Ref = -1, epoch: int | Ref = -1, timeout_ms: int = 60_000) -> Tree:
    """Return an InitProducerId request."""
    return {
        "transactional_id": name,
        "transaction_timeout_ms": timeout_ms,
        "producer_id": producer,
        "producer_epoch": epoch,
    }


def add_partitions_tree(name: str, topic_name: str, version: int, epoch: int | Ref, partitions: list[int]) -> Tree:
    """Return an AddPartitionsToTxn request."""
    topics = [{"name": topic_name, "partitions": partitions}]
    if version < 4:
        return {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": Ref("p"),
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": topics,
        }
    one = {"transactional_id": name, "producer_id": Ref("p"), "producer_epoch": epoch, "verify_only": False}
    return {"transactions": [{**one, "topics": topics}]}


def batch(name: str, epoch: int | Ref, sequence: int, transactional_id: str | None, attributes: int = 0x10) -> Tree:
    """Return a Produce request with a transactional batch."""
    spec = BatchSpec(
        records(2), producer_id=Ref("p"), producer_epoch=epoch, base_sequence=sequence, attributes=attributes
    )
    return produce_tree(name, {0: spec}, transactional_id=transactional_id)


def offset_commit_tree(name: str, group: str, topic_name: str, epoch: int | Ref) -> Tree:
    """Return a TxnOffsetCommit request."""
    part = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": None}
    return {
        "transactional_id": name,
        "group_id": group,
        "producer_id": Ref("p"),
        "producer_epoch": epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic_name, "partitions": [part]}],
    }


def note_marker(case: Case, has_marker: bool) -> bool:
    """Record a marker in a case; `has_marker` says that no records were written since the previous one."""
    if has_marker:
        case.events.add("a second marker without records")
    return True


def wait_until_ended(case: Case, id_: str) -> None:
    """Wait until no side has pending markers of the transaction, because later answers depend on them."""
    deadline = time.monotonic() + ENDED_LIMIT_S
    for side in case.sides:
        while time.monotonic() < deadline:
            tree = side.ask("DescribeTransactions", 0, {"transactional_ids": [id_]}, Route("transaction", id_)).tree
            if tree is None or not tree["transaction_states"][0]["transaction_state"].startswith("Prepare"):
                break
            time.sleep(POLL_S)


@family("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", "Produce",
        "DescribeTransactions", weight=8)  # fmt: skip
def transactions(case: Case) -> None:
    """One transactional producer: valid and invalid requests in any order; then the records that readers receive."""
    name, id_ = topic(case), f"{case.prefix}-x"
    group = f"{case.prefix}-g"
    init_producer(case, id_)
    sequence, has_marker = 0, False
    groups: set[str] = set()
    for _ in range(STEPS):
        kind = case.rng.choice(
            ["add", "add", "produce", "produce", "end", "offsets", "commit", "describe", "init", "describe-producers"]
        )
        epoch: Ref = Ref("p-epoch", case.rng.choice([0] * 8 + [-1, 1]))
        odds, stale = 0.25, int(epoch.plus != 0)
        if kind == "add":
            version = case.version("AddPartitionsToTxn", 0, 3)
            tree = add_partitions_tree(id_, name, version, epoch, case.rng.choice([[0], [0], [0, 5], [0, 0], []]))
            case.ask(
                "AddPartitionsToTxn", case.mutate("AddPartitionsToTxn", version, tree, odds=odds, faults=stale), version
            )
        elif kind == "produce":
            given = case.rng.choice([id_, id_, id_, id_, None, "", f"{id_}-other"])
            attributes = case.rng.choice([0x10, 0x10, 0x10, 0x10, 0])
            tree = batch(name, epoch, sequence, given, attributes)
            answer = case.ask("Produce", tree, case.version("Produce", 3, 11))
            if answer["responses"][0]["partition_responses"][0]["error_code"] == 0:
                sequence = sequence + 2 if epoch.plus == 0 else 2
                if attributes:
                    has_marker = False  # records outside a transaction do not count
            elif attributes:
                case.events.add("a transactional batch was refused")
        elif kind == "end":
            version = case.version("EndTxn", 0, 4)
            tree = {"transactional_id": id_, "producer_id": Ref("p"), "producer_epoch": epoch}
            tree["committed"] = case.rng.random() < 0.6
            answer = case.ask("EndTxn", case.mutate("EndTxn", version, tree, odds=odds, faults=stale), version)
            if answer["error_code"] == 0:
                has_marker = note_marker(case, has_marker)
            if case.rng.random() < 0.3:
                again = case.ask("EndTxn", tree, version)
                if answer["error_code"] and not again["error_code"]:
                    has_marker = note_marker(case, has_marker)
            wait_until_ended(case, id_)
        elif kind == "offsets":
            version = case.version("AddOffsetsToTxn")
            tree = {"transactional_id": id_, "producer_id": Ref("p"), "producer_epoch": epoch, "group_id": group}
            tree = case.mutate("AddOffsetsToTxn", version, tree, odds=odds, faults=stale)
            if case.ask("AddOffsetsToTxn", tree, version)["error_code"] == 0:
                groups.add(tree["group_id"])
        elif kind == "commit":
            version = case.version("TxnOffsetCommit", 0, 4)
            tree = offset_commit_tree(id_, group, name, epoch)
            tree = case.mutate("TxnOffsetCommit", version, tree, odds=odds, faults=stale)
            if groups and tree["group_id"] not in groups:
                case.events.add("another group was added to a transaction")
            case.ask("TxnOffsetCommit", tree, version)
            case.events.discard("another group was added to a transaction")
        elif kind == "describe":
            tree = {"transactional_ids": case.rng.choice([[id_], [id_, "unknown"], ["", id_]])}
            case.ask("DescribeTransactions", tree)
        elif kind == "describe-producers":
            case.ask("DescribeProducers", {"topics": [{"name": name, "partition_indexes": [0]}]})
        else:
            version = case.version("InitProducerId")
            claims = case.rng.random() < 0.5
            tree = init_tree(id_, Ref("p") if claims else -1, epoch if claims else -1)
            learn = {"p": "producer_id", "p-epoch": "producer_epoch"}
            answer = case.ask("InitProducerId", tree, version)
            if answer["error_code"]:
                if claims and epoch.plus:
                    return  # Kafka aborts an open transaction before it rejects the epoch, Penstock does not
                continue
            case.ask("InitProducerId", init_tree(id_), version, learn=learn)
            sequence = 0
            has_marker = True  # InitProducerId aborts an open transaction
    case.ask("OffsetFetch", {"group_id": group, "topics": [{"name": name, "partition_indexes": [0]}]}, 5)
    read_back(case, name)


@family("InitProducerId", weight=5)
def producer_ids(case: Case) -> None:
    """InitProducerId alone: new, repeated, stale and unknown ids and epochs, with and without a transactional id."""
    id_ = case.rng.choice([f"{case.prefix}-x", f"{case.prefix}-x", None, ""])
    learned = False
    for _ in range(STEPS):
        version = case.version("InitProducerId")
        producer = case.rng.choice([-1, -1, 0, 5, *([Ref("p"), Ref("p"), Ref("p", 1)] if learned else [])])
        epoch = case.rng.choice([-1, 0, 1, *([Ref("p-epoch"), Ref("p-epoch"), Ref("p-epoch", -1)] if learned else [])])
        tree = init_tree(id_, producer, epoch, case.rng.choice([60_000, 60_000, 0, -1, 900_000, 900_001, 1 << 30]))
        tree = case.mutate("InitProducerId", version, tree, keep={"producer_id", "producer_epoch"}, odds=0.2)
        for side in case.sides:
            side.assigned.setdefault("next", -1)
        answer = case.ask(
            "InitProducerId", tree, version, learn={"next": "producer_id", "next-epoch": "producer_epoch"}
        )
        if not answer["error_code"] and tree["transactional_id"] == id_:
            learned = True
            for side in case.sides:
                side.assigned["p"], side.assigned["p-epoch"] = side.assigned["next"], side.assigned["next-epoch"]


@family("AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit", weight=4)
def transactions_of_nobody(case: Case) -> None:
    """Requests about missing transactional ids, or with another producer's id and epoch."""
    name, id_ = topic(case), f"{case.prefix}-x"
    group = f"{case.prefix}-g"
    exists = case.rng.random() < 0.5
    init_producer(case, id_ if exists else None)
    for _ in range(STEPS):
        given = case.rng.choice([id_, id_, "", f"{id_}-unknown"])
        epoch = Ref("p-epoch", case.rng.choice([0, 0, 1, -1, 5]))
        api = case.rng.choice(["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"])
        version = case.version(api, 0, 3 if api == "AddPartitionsToTxn" else 4)
        producer = Ref("p", case.rng.choice([0, 0, 1000]))
        owner = {"transactional_id": given, "producer_id": producer, "producer_epoch": epoch}
        faults = sum((given != id_, producer.plus != 0, epoch.plus != 0))
        if api == "AddPartitionsToTxn":
            tree = add_partitions_tree(given, case.rng.choice([name, "unknown"]), version, epoch, [0])
            tree["v3_and_below_producer_id"] = owner["producer_id"]
        elif api == "AddOffsetsToTxn":
            tree = {**owner, "group_id": group}
        elif api == "EndTxn":
            tree = {**owner, "committed": case.rng.random() < 0.5}
        else:
            tree = {**offset_commit_tree(given, group, name, epoch), **owner}
        case.ask(api, case.mutate(api, version, tree, odds=0.3, faults=faults), version)
        if api == "EndTxn":
            wait_until_ended(case, id_)


@family("AddPartitionsToTxn", weight=2)
def batched_adding(case: Case) -> None:
    """AddPartitionsToTxn 4 and 5, as leaders send it: several transactions in a request, verification only."""
    name, id_ = topic(case, partitions=2), f"{case.prefix}-x"
    init_producer(case, id_)
    for _ in range(8):
        version = case.version("AddPartitionsToTxn", 4)
        epoch = Ref("p-epoch", case.rng.choice([0, 0, 0, 1, -1]))
        tree = add_partitions_tree(id_, name, version, epoch, case.rng.choice([[0], [1], [0, 1], [5]]))
        tree["transactions"][0]["verify_only"] = case.rng.random() < 0.6
        if case.rng.random() < 0.3:
            other = {**tree["transactions"][0], "transactional_id": f"{id_}-unknown"}
            tree["transactions"].append(other)
        case.ask("AddPartitionsToTxn", case.mutate("AddPartitionsToTxn", version, tree, odds=0.2), version)
        if case.rng.random() < 0.4:
            tree = add_partitions_tree(id_, name, 3, Ref("p-epoch"), [0])
            case.ask("AddPartitionsToTxn", tree, 3)


@family("WriteTxnMarkers", "Produce", weight=2, cluster=False)
def markers(case: Case) -> None:
    """WriteTxnMarkers requests, as `kafka-transactions abort` sends them."""
    name, id_ = topic(case, partitions=2), f"{case.prefix}-x"
    init_producer(case, id_)
    case.ask("AddPartitionsToTxn", add_partitions_tree(id_, name, 3, Ref("p-epoch"), [0]), 3)
    case.ask("Produce", batch(name, Ref("p-epoch"), 0, id_), case.version("Produce", 3, 11))
    has_marker = False
    for _ in range(4):
        marker = {
            "producer_id": Ref("p", case.rng.choice([0, 0, 1000])),
            "producer_epoch": Ref("p-epoch", case.rng.choice([0, 0, 1, -1])),
            "transaction_result": case.rng.random() < 0.3,
            "topics": [
                {
                    "name": case.rng.choice([name, name, "unknown"]),
                    "partition_indexes": case.rng.choice([[0], [0, 7], []]),
                }
            ],
            "coordinator_epoch": case.rng.choice([0, 0, -1, 5]),
        }
        version = case.version("WriteTxnMarkers")
        tree = {"markers": [marker]}
        answer = case.ask("WriteTxnMarkers", case.mutate("WriteTxnMarkers", version, tree, odds=0.2), version)
        if not all(error_codes(answer)):
            has_marker = note_marker(case, has_marker)
        if case.rng.random() < 0.5:
            epoch = Ref("p-epoch", case.rng.choice([0, 1, 1, 2]))
            case.ask("Produce", batch(name, epoch, case.rng.choice([0, 2, 2, 5]), None, 0), case.version("Produce", 3))
        read_back(case, name)
        case.ask("DescribeProducers", {"topics": [{"name": name, "partition_indexes": [0]}]})


@family("ListTransactions", "DescribeTransactions", weight=2)
def transaction_listing(case: Case) -> None:
    """Lists of transactions by state, producer, age and pattern."""
    id_ = f"{case.prefix}-x"
    init_producer(case, id_)
    if case.rng.random() < 0.5:
        name = topic(case)
        case.ask("AddPartitionsToTxn", add_partitions_tree(id_, name, 3, Ref("p-epoch"), [0]), 3)
    for _ in range(5):
        version = case.version("ListTransactions")
        states = case.rng.choice([[], ["Ongoing"], ["Empty"], ["ongoing", "Nonexistent"], [""], ["Dead"]])
        tree = {
            "state_filters": states,
            "producer_id_filters": [Ref("p")],
            "duration_filter": case.rng.choice([-1, 0, 1 << 40]),
        }
        tree["transactional_id_pattern"] = case.rng.choice([None, "", id_, f"{case.prefix}-.*", "(", ".*"])
        case.ask("ListTransactions", tree, version, route=Route("transaction", id_))
        case.ask(
            "DescribeTransactions", case.mutate("DescribeTransactions", 0, {"transactional_ids": [id_]}, odds=0.4), 0
        )
