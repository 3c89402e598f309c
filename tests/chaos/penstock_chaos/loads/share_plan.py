"""The plan of the simulation's share group for real brokers, with the real clock."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, cast

from penstock_simulation.history import History
from penstock_simulation.workload import Plan

if TYPE_CHECKING:
    from penstock_simulation.world import World


class RealWorld:
    """The clock of a world."""

    @property
    def now(self) -> float:
        """The monotonic time in seconds, which all processes share."""
        return time.monotonic()


def share_plan(options: dict[str, Any]) -> Plan:
    """Return the plan of a load with the options bootstrap, group, topics and settings."""
    world = cast("World", RealWorld())
    plan = Plan(world, History(), options["bootstrap"], partitions=0, records=0, pause_s=0.0)
    plan.queue_group, plan.queue_topics = options["group"], list(options["topics"])
    plan.queue_settings = options["settings"]
    plan.others = [(topic, count, False) for topic, count in options["topics"].items()]
    plan.working.add(f"until the end {random.random()}")
    return plan
