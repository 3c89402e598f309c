"""Carries out what was planned for many topics, in as few requests as there are kinds of actions. Used by `controller`.

One topic's failure is its own: its later actions wait for the next look, the others go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock_operator.ports.brokers import Brokers, BrokersError, SettingsChange
from penstock_operator.ports.kube import Happening
from penstock_operator.reconcile.topic_types import (
    ChangeSettings,
    Create,
    Delete,
    Grow,
    Reassign,
    TopicAction,
)

K = TypeVar("K")
A = TypeVar("A", bound=TopicAction)
Answers = Mapping[K, BrokersError | None]

BEHIND = {
    Create: frozenset({"TOPIC_ALREADY_EXISTS"}),
    Delete: frozenset({"UNKNOWN_TOPIC_ID", "UNKNOWN_TOPIC_OR_PARTITION"}),
}
"""Errors that say that it has been done: the broker that told what there is was behind, or an answer was lost."""


@dataclass(slots=True)
class Outcome:
    """By topic: why it failed (once), what is to be told, and what was found done already."""

    failures: dict[str, BrokersError] = field(default_factory=dict)
    happenings: dict[str, list[Happening]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)


async def carry_out(brokers: Brokers, wanted: Mapping[str, Sequence[TopicAction]]) -> Outcome:
    """Deletes, creates, changes settings, adds partitions, moves replicas: in this order, one request a kind."""
    run = _Run(brokers, wanted)
    await run.each(Delete, lambda found: brokers.delete_topics({n: a.topic_id for n, a in found.items()}))
    await run.each(Create, lambda found: brokers.create_topics([a.topic for a in found.values()]))
    await run.each(
        ChangeSettings,
        lambda found: brokers.change_topics([SettingsChange(n, a.settings) for n, a in found.items()]),
    )
    await run.each(Grow, lambda found: brokers.grow_topics({n: a.partitions for n, a in found.items()}))
    await run.each(Reassign, run.reassign)
    run.outcome.done = {name for name in wanted if name not in run.outcome.failures}
    return run.outcome


class _Run:
    def __init__(self, brokers: Brokers, wanted: Mapping[str, Sequence[TopicAction]]) -> None:
        self.brokers, self.wanted, self.outcome = brokers, wanted, Outcome()

    async def each(self, kind: type[A], ask: Callable[[Mapping[str, A]], Awaitable[Answers[str]]]) -> None:
        """One request for all actions of a kind, of topics that have not failed yet."""
        found = {
            name: action
            for name, actions in self.wanted.items()
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
            elif error is None and action.happening is not None:
                self.outcome.happenings.setdefault(name, []).append(action.happening)

    async def reassign(self, found: Mapping[str, Reassign]) -> Answers[str]:
        answers = await self.brokers.reassign({(n, i): to for n, a in found.items() for i, to in a.targets.items()})
        return {name: _first(answers[name, i] for i in action.targets) for name, action in found.items()}


def _first(errors: Iterable[BrokersError | None]) -> BrokersError | None:
    return next((error for error in errors if error is not None), None)
