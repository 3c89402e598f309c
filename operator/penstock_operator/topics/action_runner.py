"""Executes the planned actions of many topics, one request per kind of action. Used by `batch` and `orphans`.

If an action of a topic fails, its later actions are skipped until the next reconciliation. Other topics continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock_operator.ports.brokers import BrokerGateway, BrokersError, ConfigPatch
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.topic.types import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DecreasePartitions,
    DeleteTopic,
    ReassignTopic,
    TopicAction,
)

K = TypeVar("K")
A = TypeVar("A", bound=TopicAction)
Answers = Mapping[K, BrokersError | None]

BEHIND = {
    CreateTopic: frozenset({"TOPIC_ALREADY_EXISTS"}),
    DeleteTopic: frozenset({"UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION"}),
}
"""Errors that mean that the action was already done: the observed broker was behind, or a response was lost."""


@dataclass(slots=True)
class ActionOutcome:
    """Failures and Events by topic, and the topics without a failure."""

    failures: dict[str, BrokersError] = field(default_factory=dict)
    events: dict[str, list[KubeEvent]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)


async def carry_out(brokers: BrokerGateway, planned: Mapping[str, Sequence[TopicAction]]) -> ActionOutcome:
    """Delete, create, change settings, add or decrease partitions, reassign: in this order, one request per kind."""
    run = _Run(brokers, planned)
    await run.each(DeleteTopic, lambda found: brokers.delete_topics({n: a.topic_id for n, a in found.items()}))
    await run.each(CreateTopic, lambda found: brokers.create_topics([a.topic for a in found.values()]))
    await run.each(
        AlterTopicConfig,
        lambda found: brokers.change_topics([ConfigPatch(n, a.settings) for n, a in found.items()]),
    )
    await run.each(AddPartitions, lambda found: brokers.grow_topics({n: a.partitions for n, a in found.items()}))
    await run.each(DecreasePartitions, lambda found: brokers.shrink_topics({n: a.partitions for n, a in found.items()}))
    await run.each(ReassignTopic, run.reassign)
    run.outcome.done = {name for name in planned if name not in run.outcome.failures}
    return run.outcome


class _Run:
    def __init__(self, brokers: BrokerGateway, planned: Mapping[str, Sequence[TopicAction]]) -> None:
        self.brokers, self.planned, self.outcome = brokers, planned, ActionOutcome()

    async def each(self, kind: type[A], ask: Callable[[Mapping[str, A]], Awaitable[Answers[str]]]) -> None:
        """Send one request for all actions of a kind, for topics without a failure."""
        found = {
            name: action
            for name, actions in self.planned.items()
            if name not in self.outcome.failures
            for action in actions
            if isinstance(action, kind)
        }
        if not found:
            return
        try:
            answers = await ask(found)
        except BrokersError as e:
            answers = dict.fromkeys(found, e)
        for name, action in found.items():
            error = answers.get(name)
            if error is not None and error.code not in BEHIND.get(kind, ()):
                self.outcome.failures[name] = error
            elif error is None and action.event is not None:
                self.outcome.events.setdefault(name, []).append(action.event)

    async def reassign(self, found: Mapping[str, ReassignTopic]) -> Answers[str]:
        """Reassign partitions; returns the first error by topic."""
        answers = await self.brokers.reassign({(n, i): to for n, a in found.items() for i, to in a.targets.items()})
        return {name: _first(answers[name, i] for i in action.targets) for name, action in found.items()}


def _first(errors: Iterable[BrokersError | None]) -> BrokersError | None:
    return next((error for error in errors if error is not None), None)
