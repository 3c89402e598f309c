"""The plan of the simulation's scheduled records for real brokers, with the real clocks."""

from __future__ import annotations

from typing import Any, cast

from penstock_simulation.history import History
from penstock_simulation.workload import Plan

from penstock_chaos.loads.share_plan import RealWorld


def schedule_plan(options: dict[str, Any]) -> Plan:
    """Return the plan of a load with the options bootstrap, topic, partitions and pause_s."""
    world = cast("Any", RealWorld())
    plan = Plan(world, History(), options["bootstrap"], partitions=0, records=0, pause_s=options.get("pause_s", 0.0))
    plan.others = [(options["topic"], options["partitions"], False)]
    return plan
