"""The change of the listener for brokers, from plain text to mutual TLS or back, without an interruption.

It takes two or three rolling restarts. The step is derived from the annotations of the pods.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.model.cluster import Cluster
from penstock_operator.reconcile.cluster.observed import ObservedPod
from penstock_operator.specs.listeners import BROKERS, PLAINTEXT, Transition, is_secured


def plan_transition(cluster: Cluster, pods: Sequence[ObservedPod]) -> Transition:
    """Return the step that the pods have reached."""
    desired = BROKERS if is_secured(cluster) else PLAINTEXT
    if all(pod.inter_broker == desired for pod in pods):
        return Transition.NONE
    if all(desired in pod.listeners for pod in pods):
        return Transition.SWITCHING
    return Transition.ADDING
