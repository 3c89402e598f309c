"""Decides whether to delete a topic whose object is gone. Used by `reconcile.topic`.

Objects have no finalizers and may disappear while no operator runs. The owner and policy stored with the topic decide,
given evidence of a user's request: a DELETED event, or two consecutive complete lists without the owner. While the
namespace or the CRD is being deleted, the topic is retained permanently.
"""

from __future__ import annotations

from typing import Literal

from penstock_operator.model.common import LISTS_WITHOUT
from penstock_operator.model.topic import TopicStatus
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic.types import AlterTopicConfig, DeleteTopic, ObservedTopic, TopicAction

DeletionDecision = Literal["keep", "check", "protect", "delete"]


def decide_deletion(observed: ObservedTopic) -> DeletionDecision:
    """Return the decision. "check": first find out whether the namespace or the CRD is being deleted. "protect": set
    the stored policy to Retain, so that the same absence does not delete the topic later."""
    topic, absence = observed.topic, observed.absence
    if topic is None or absence is None or observed.has_owner or not topic.settings.get(OWNER):
        return "keep"
    stored = topic.settings.get(DELETION_POLICY)
    if absence.was_deleted and absence.policy is not None and absence.policy != "Delete":
        return "protect" if stored == "Delete" else "keep"  # its final policy had not reached the brokers
    if (absence.policy or stored) != "Delete":
        return "keep"
    if not absence.was_deleted and absence.lists_without < LISTS_WITHOUT:
        return "keep"
    if absence.may_delete is None:
        return "check"
    return "delete" if absence.may_delete else "protect"


def plan(observed: ObservedTopic) -> ReconcilePlan[TopicAction, TopicStatus]:
    """Plan a topic without an object."""
    decided = decide_deletion(observed)
    if decided == "delete":
        assert observed.topic is not None, "only an existing topic is deleted"
        return ReconcilePlan(TopicStatus(), (deletion(observed),))
    if decided == "protect":
        message = f"retained topic {observed.name} regardless of its deletionPolicy"
        return ReconcilePlan(
            TopicStatus(), (AlterTopicConfig({DELETION_POLICY: "Retain"}, KubeEvent("Normal", "Retained", message)),)
        )
    return ReconcilePlan(TopicStatus())


def deletion(observed: ObservedTopic) -> DeleteTopic:
    """Return the action that deletes the observed topic."""
    assert observed.topic is not None, "only an existing topic is deleted"
    message = f"deleted topic {observed.name} and its records: its Topic was deleted, with deletionPolicy Delete"
    return DeleteTopic(observed.topic.topic_id, KubeEvent("Normal", "Deleted", message))
