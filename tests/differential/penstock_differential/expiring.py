"""Expired producers and transactional ids, on services that retain them for only two seconds."""

from __future__ import annotations

import time

from penstock_differential.case import Case, CaseEnded
from penstock_differential.families.transactions import add_partitions_tree, batch, init_tree
from penstock_differential.families.world import init_producer, produce, read_back, records, topic
from penstock_differential.sides import Route
from penstock_differential.values import BatchSpec, Ref, Tree

EXPIRED_LIMIT_S = 30.0
POLL_S = 0.1
UNKNOWN_TRANSACTIONAL_ID = 105


def wait_until_expired(case: Case, id_: str) -> None:
    """Wait until neither side knows the transactional id."""
    deadline = time.monotonic() + EXPIRED_LIMIT_S
    for side in case.sides:
        while True:
            tree = side.ask("DescribeTransactions", 0, {"transactional_ids": [id_]}, Route("transaction", id_)).tree
            if tree is not None and tree["transaction_states"][0]["error_code"] == UNKNOWN_TRANSACTIONAL_ID:
                break
            if time.monotonic() > deadline:
                print(f"{case.label}: {side.label} still knows transactional id {id_}", flush=True)
                raise CaseEnded
            time.sleep(POLL_S)


def wait_until_forgotten(case: Case, name: str) -> None:
    """Wait until neither side's partition remembers a producer."""
    deadline = time.monotonic() + EXPIRED_LIMIT_S
    for side in case.sides:
        request = {"topics": [{"name": name, "partition_indexes": [0]}]}
        while True:
            tree = side.ask("DescribeProducers", 0, request, Route("leader", name, 0)).tree
            if tree is not None and not tree["topics"][0]["partitions"][0]["active_producers"]:
                break
            if time.monotonic() > deadline:
                print(f"{case.label}: {side.label} still knows the producer of {name}", flush=True)
                raise CaseEnded
            time.sleep(POLL_S)


def expired_transactional_id(case: Case) -> None:
    """Send one request of a producer whose transactional id has expired, then the first one of a new instance."""
    name, id_ = topic(case), f"{case.prefix}-x"
    init_producer(case, id_)
    case.ask("AddPartitionsToTxn", add_partitions_tree(id_, name, 3, Ref("p-epoch"), [0]), 3)
    case.ask("Produce", batch(name, Ref("p-epoch"), 0, id_), 7)
    owner: Tree = {"transactional_id": id_, "producer_id": Ref("p"), "producer_epoch": Ref("p-epoch")}
    case.ask("EndTxn", {**owner, "committed": True}, 3)
    wait_until_expired(case, id_)
    api = case.rng.choice(["AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "InitProducerId"])
    version = case.version(api, 3, 3)
    trees: dict[str, Tree] = {
        "AddPartitionsToTxn": add_partitions_tree(id_, name, 3, Ref("p-epoch"), [0]),
        "AddOffsetsToTxn": {**owner, "group_id": f"{case.prefix}-g"},
        "EndTxn": {**owner, "committed": True},
        "InitProducerId": init_tree(id_, Ref("p"), Ref("p-epoch")),
    }
    case.ask(api, trees[api], version)
    if api != "InitProducerId":
        case.ask("InitProducerId", init_tree(id_), 4)
    read_back(case, name)


def expired_producer(case: Case) -> None:
    """Send batches of an idempotent producer that its partition has forgotten."""
    name = topic(case)
    init_producer(case)
    spec = BatchSpec(records(2), producer_id=Ref("p"), producer_epoch=Ref("p-epoch"), base_sequence=0)
    produce(case, name, spec)
    wait_until_forgotten(case, name)
    again = BatchSpec(records(2), producer_id=Ref("p"), producer_epoch=Ref("p-epoch"), base_sequence=2)
    produce(case, name, case.rng.choice([spec, again]))
    read_back(case, name)


CASES = (expired_transactional_id, expired_producer)
