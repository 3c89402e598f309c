"""What becomes of a topic whose object is gone. Used by `reconcile.topic`.

There are no finalizers, so an object goes at once, also while this operator is away. What is stored with the topic
(owner and deletion policy) decides, on proof that somebody wanted it: the DELETED event came, or two complete lists in
a row lack the owner. Never while the namespace or the resource definition is going: then the topic is kept for good.
"""

from __future__ import annotations

from typing import Literal

from penstock_operator.model.common import LISTS_WITHOUT
from penstock_operator.model.topic import TopicStatus
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic.types import AlterTopicConfig, DeleteTopic, ObservedTopic, TopicAction

Fate = Literal["keep", "check", "protect", "delete"]


def fate(observed: ObservedTopic) -> Fate:
    """ "check": whether its namespace and resource definition stay has to be found out first; "protect": what is stored
    has to say Retain from now on, so that it is not deleted later for the same absence."""
    topic, gone = observed.topic, observed.gone
    if topic is None or gone is None or observed.owner_is_there or not topic.settings.get(OWNER):
        return "keep"
    stored = topic.settings.get(DELETION_POLICY)
    if gone.was_deleted and gone.policy is not None and gone.policy != "Delete":
        return "protect" if stored == "Delete" else "keep"  # its last word had not reached the brokers
    if (gone.policy or stored) != "Delete":
        return "keep"
    if not gone.was_deleted and gone.lists_without < LISTS_WITHOUT:
        return "keep"
    if gone.may_delete is None:
        return "check"
    return "delete" if gone.may_delete else "protect"


def plan(observed: ObservedTopic) -> ReconcilePlan[TopicAction, TopicStatus]:
    """For a topic that no object wants."""
    decided = fate(observed)
    if decided == "delete":
        assert observed.topic is not None, "only what is there is deleted"
        return ReconcilePlan(TopicStatus(), (deletion(observed),))
    if decided == "protect":
        message = f"topic {observed.name} is kept, whatever its deletionPolicy was"
        return ReconcilePlan(
            TopicStatus(), (AlterTopicConfig({DELETION_POLICY: "Retain"}, KubeEvent("Normal", "Retained", message)),)
        )
    return ReconcilePlan(TopicStatus())


def deletion(observed: ObservedTopic) -> DeleteTopic:
    assert observed.topic is not None, "only what is there is deleted"
    message = f"deleted topic {observed.name} and its records: its Topic was deleted, with deletionPolicy Delete"
    return DeleteTopic(observed.topic.topic_id, KubeEvent("Normal", "Deleted", message))
