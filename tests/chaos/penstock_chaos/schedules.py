"""A cluster whose clients schedule and cancel records: the world of the cells `schedule-*`."""

from __future__ import annotations

import time

from penstock_simulation.history import History, Outcome
from penstock_simulation.scheduling import REMINDERS

from penstock_chaos.history import SOURCE, Told
from penstock_chaos.workload import Workload
from penstock_chaos.world import FINISH_LIMIT_S, PRODUCE_PAUSE_S, SOURCE_PARTITIONS, World

REMINDER_PARTITIONS = 2
CLOCK_ERROR_S = 0.05
"""Upper bound of the error of a time: the brokers count in ms, and share a clock."""
SCHEDULE_PAUSE_S = PRODUCE_PAUSE_S
SOURCE_PAUSE_S = 5 * PRODUCE_PAUSE_S
CLIENTS = ("scheduler", "reminded")
PLACE = {"topic": REMINDERS, "partitions": REMINDER_PARTITIONS}


class ScheduleWorld(World):
    """A producer of scheduled records and cancellations, a consumer of them, and a producer of the source."""

    topics = {SOURCE: SOURCE_PARTITIONS}  # noqa: RUF012
    led_topics = (SOURCE, REMINDERS)
    groups = ()

    def create_topics(self) -> None:
        self.cluster.create_topic(SOURCE, SOURCE_PARTITIONS)
        self.cluster.create_topic(REMINDERS, REMINDER_PARTITIONS, **{"delivery.schedule.enable": "true"})

    def start_workloads(self) -> None:
        source = {"topic": SOURCE, "partitions": SOURCE_PARTITIONS}
        self.work("produce_confluent", "confluent", "ack", pause_s=SOURCE_PAUSE_S, **source)
        seed = self.rng.randrange(1 << 32)
        self.work("schedule", "scheduler", "reminded", pause_s=SCHEDULE_PAUSE_S, seed=seed, **PLACE)
        self.work("read_scheduled", "reminded", "polled", **PLACE)

    def finish_all(self) -> None:
        """Let the producers finish, then wait until no record waits."""
        self.finish_workloads(["confluent", "scheduler"])
        end = Workload(
            self.home, self.cluster.clients, "schedule_end", "end", "over", bootstrap=self.cluster.bootstrap, **PLACE
        )
        self.workloads["end"] = end
        end.wait_finished(time.monotonic() + FINISH_LIMIT_S)
        self.finish_workloads(["reminded"])

    def describe(self, history: History) -> None:
        known = [write for write in history.scheduled if write.outcome is Outcome.OK]
        cancellations = sum(write.is_cancellation for write in known)
        delivered = sum(map(len, history.scheduled_contents.values()))
        self.outcome.evidence.append(
            f"{len(known) - cancellations} records and {cancellations} cancellations of scheduled records were"
            f" acknowledged, and {delivered} records were delivered"
        )

    def settings_of(self, told: Told) -> None:
        told.history.epoch_ms = (time.time() - time.monotonic()) * 1000
        told.history.clock_error_s = CLOCK_ERROR_S
