"""`node` composes the broker: no constructor in the packages below it has an optional collaborator."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

ROOMS = ("api", "control", "group", "http", "replica", "share", "txn")
VALUES = {"bool", "bytes", "float", "int", "str", "UUID", "None"}
"""Value types; an optional value is not a collaborator."""
OPTIONAL = {
    **dict.fromkeys(
        (
            "ApiRules.logged",
            "DetailRule.when",
            "ElementRule.all_of",
            "ElementRule.instead",
            "ElementRule.when",
            "NestedRule.when",
            "OperationsRule.when",
            "RequestRule.when",
            "Requirement.when",
            "VisibilityRule.instead",
            "VisibilityRule.when",
        ),
        "a value: a row of the table of rights leaves out what it does not need",
    ),
    **dict.fromkeys(
        (
            "Dispatcher.enforcement",
            "FetchApi.access",
            "ProduceApi.access",
            "ProduceAppends.access",
            "ShareAcks.access",
            "ShareFetchApi.access",
        ),
        "without authorization, hot paths pay for one comparison only",
    ),
    **dict.fromkeys(("PendingFetch.meter", "RequestContext.meter"), "a value: only some clients have quotas"),
    **dict.fromkeys(
        ("BackgroundHttpServer.tls", "HttpAccess.tls", "HttpServer.access"),
        "HTTP is protected if it is configured",
    ),
    **dict.fromkeys(
        ("MemberHeartbeat.owned", "MemberHeartbeat.topic_filter", "MemberHeartbeat.topic_names"),
        "values: a heartbeat leaves out what has not changed",
    ),
    "HeartbeatResult.assigned": "a result: only some heartbeats bring an assignment",
    "ModernMember.topic_filter": "a value: only some members subscribe by a pattern",
    "ModernMember.classic": "state: only members of the classic protocol have it",
    "RunningModernGroup.replaced": "state: the classic group that this one replaces, if there was one",
    "AuthenticationStage.session": "a value: the session that is renewed",
    "DeferredBatch.verification": "a batch behind others is verified when its turn comes",
    "DeferredBatch.inspection": "a result: only some batches are inspected",
    "FetchSession.pending": "state: the session's waiting request",
    "LeaseKeepAlive.pulse": "the event loop to observe, if the renewal runs on another one",
    "Run.next_state": "a value: only acknowledged records have one",
    "ShareDeadLetters.stored": "a value: only share-partitions that had dead letters have one",
    **dict.fromkeys(
        ("SharePartition.delays", "SharePartitionLeader.delays"), "a value: only a claim in the same process has delays"
    ),
    "ShareLimits.filter": "a value: only some groups have a filter",
    "RecoveryInput.producer_ids": "a record that the store may lack",
    "Route.decode": "only some requests are decoded in a special way",
    "Route.failure": "only some requests have a response for errors",
    "UnacknowledgedBatch.outcome": "a result: there is none while the batch is verified",
    "TransactionState.completion_task": "state: the running completion",
    "TransactionState.deadline": "state: there is none before the first timeout",
    "TransactionState.record": "state: there is none before the first write",
    **dict.fromkeys(
        ("BrokerProbes.deposed", "ControllerTerm.deposed"),
        "a value: only some terms follow a controller that was suspected",
    ),
    "CoordinatorShard.loading": "state: the running load",
    "PendingRead.task": "state: the running read",
    "OffsetUsage.topics": "a value that may be unknown",
    "ReassignmentRequest.replicas": "a value: None cancels the reassignment",
}
"""Permitted optional parameters, each with its reason."""


def optional_parameters(room: str) -> Iterator[str]:
    package = importlib.import_module(f"penstock.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"penstock.{room}."):
        module = importlib.import_module(found.name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__ and "__init__" in vars(cls):
                for name, parameter in inspect.signature(cls.__init__).parameters.items():
                    alternatives = outer_alternatives(str(parameter.annotation))
                    if "None" in alternatives and not alternatives <= VALUES:
                        yield f"{cls.__name__}.{name}"


def outer_alternatives(annotation: str) -> set[str]:
    """Return the members of a union, without those inside brackets."""
    parts, depth = [""], 0
    for character in annotation:
        depth += (character == "[") - (character == "]")
        if character == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return {part.strip() for part in parts}


@pytest.mark.parametrize("room", ROOMS)
def test_no_constructor_takes_an_optional_collaborator(room: str) -> None:
    assert set(optional_parameters(room)) <= OPTIONAL.keys()
