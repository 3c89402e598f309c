"""The matrix: for each user the same requests. Compared are all fields: errors, entries, bits of operations."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any

from penstock.wire.acl import AclOperation, AclPermission, PatternType, ResourceType
from penstock_differential.authorization.grants import Grant, Names
from penstock_differential.authorization.requests import questions
from penstock_differential.authorization.secured import SecuredSide, user_name
from penstock_differential.case import Case, CaseEnded, Record
from penstock_differential.families.migrations import consumer_tree
from penstock_differential.families.share_world import join as join_share_group
from penstock_differential.families.world import commit_tree, init_producer, wait_for_topic
from penstock_differential.peers import ServicePair
from penstock_differential.values import Ref, Tree

KNOWN_LIMIT_S, POLL_S = 20.0, 0.02
FAMILY = "authorization"


def filter_of(principal: str) -> Tree:
    """Return a filter for all ACLs of a principal."""
    return {
        "resource_type_filter": int(ResourceType.ANY),
        "pattern_type_filter": int(PatternType.ANY),
        "principal_filter": principal,
        "operation": int(AclOperation.ANY),
        "permission_type": int(AclPermission.ANY),
    }


def wait_for_acls(case: Case, principals: set[str], number: int) -> None:
    """Wait until the authorizers of both sides have this number of ACLs for the principals."""
    deadline = time.monotonic() + KNOWN_LIMIT_S
    for side in case.sides:
        while True:
            trees = [side.ask("DescribeAcls", 3, filter_of(principal)).tree for principal in principals]
            found = sum(len(resource["acls"]) for tree in trees if tree for resource in tree["resources"])
            if found == number:
                break
            if time.monotonic() > deadline:
                raise CaseEnded
            time.sleep(POLL_S)


def grant(case: Case, creations: list[Tree]) -> None:
    """Create ACLs on both sides, and wait until they are in effect."""
    if creations:
        case.ask("CreateAcls", {"creations": creations}, 3)
        wait_for_acls(case, {acl["principal"] for acl in creations}, len(creations))


def revoke(case: Case, creations: list[Tree]) -> None:
    """Delete the ACLs of a case."""
    principals = {acl["principal"] for acl in creations}
    if principals:
        case.ask("DeleteAcls", {"filters": [filter_of(principal) for principal in sorted(principals)]}, 3)
        wait_for_acls(case, principals, 0)


def create_resources(case: Case, names: Names) -> None:
    """Create topics, groups with offsets, and open transactions, as the super user."""
    topics = [*names.existing("t"), *names.existing("i")]
    created: list[dict[str, Any]] = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in topics]
    case.ask("CreateTopics", {"topics": created, "timeout_ms": 30_000}, 4)
    for name in topics:
        wait_for_topic(case, name, 1)
    for group in names.existing("g"):
        for name in names.existing("t"):
            case.ask("OffsetCommit", commit_tree(group, name), 8)
    for name, consumers, share in zip(*map(names.existing, "tks"), strict=True):
        case.ask("ConsumerGroupHeartbeat", consumer_tree(consumers, "c", 0, [name]), 1)
        join_share_group(case, share, name)
        for side in case.sides:
            del side.assigned["epoch"]  # a number that other values may have too
    for id_ in names.existing("x"):
        init_producer(case, id_, key=f"p-{id_}")
        case.ask(
            "AddPartitionsToTxn",
            {
                "v3_and_below_transactional_id": id_,
                "v3_and_below_producer_id": Ref(f"p-{id_}"),
                "v3_and_below_producer_epoch": Ref(f"p-{id_}-epoch"),
                "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in names.existing("t")],
            },
            3,
        )


def ask_everything(case: Case, names: Names, channel: str) -> None:
    """Send all requests as a user. A difference does not end the case: most requests name other things."""
    for api, tree, versions in questions(names):
        for version in versions:
            with contextlib.suppress(CaseEnded):
                case.ask(api, tree, version, channel=channel)


def play_user(case: Case, grants: Sequence[Grant], user: str) -> None:
    """Play the case of one user."""
    names = Names(case.prefix)
    creations = [acl for each in grants for acl in each.acls(names, user)]
    grant(case, creations)
    try:
        create_resources(case, names)
        ask_everything(case, names, user)
    finally:
        revoke(case, creations)


def play_matrix(
    pair: ServicePair, record: Record, rows: Sequence[tuple[Grant, ...]], label: str, only: int | None
) -> None:
    """Play the cases of all rows, or of the row with the number `only`; the first case is that of the super user."""
    sides = (SecuredSide("penstock", pair.penstock), SecuredSide("kafka", pair.kafka))
    try:
        for side in sides:
            side.warm_up()
        for number, grants in enumerate((None, *rows)):
            if only is not None and number != only:
                continue
            what = "super user" if grants is None else ", ".join(map(str, grants)) or "no right"
            case_label = f"{label} --case {number} ({FAMILY}: {what})"
            case = Case(case_label, f"d{int('--open' in label)}x{number}", random.Random(number), sides, record)
            before = len(record.findings)
            try:
                play_user(case, grants or (), "main" if grants is None else user_name(number))
            except CaseEnded:
                record.ended[FAMILY] += 1
                print(f"ended early: {case_label}", flush=True)
            record.cases[FAMILY] += 1
            for finding in record.findings[before:]:
                differences = "; ".join(map(str, finding.differences))[:500]
                print(f"unexplained: {case_label} {finding.api} {finding.version}: {differences}", flush=True)
            pair.check()
    finally:
        for side in sides:
            side.close()
