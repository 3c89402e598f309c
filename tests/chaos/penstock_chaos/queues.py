"""A cluster whose clients use a share group and a delayed topic: the world of the cells `queue-*`."""

from __future__ import annotations

import asyncio
import time

from penstock_simulation import queue_settings
from penstock_simulation.history import History, Outcome
from penstock_simulation.workload import configure_group

from penstock_chaos.history import SOURCE, WORKERS, Told
from penstock_chaos.loads.share_plan import share_plan
from penstock_chaos.workload import Workload
from penstock_chaos.world import FINISH_LIMIT_S, PRODUCE_PAUSE_S, SOURCE_PARTITIONS, World

LATER = "reminders"
LATER_PARTITIONS = 2
LETTERS = "dlq.orders"
LETTER_PARTITIONS = 2
DELAY_S = 3.0
CLOCK_STEP_S = 0.01
"""Upper bound of the error of a time: brokers count in ms."""
LATER_PAUSE_S = 0.02
QUEUE_PAUSE_S = 5 * PRODUCE_PAUSE_S
MEMBERS = 4
QUEUES = {SOURCE: SOURCE_PARTITIONS, LATER: LATER_PARTITIONS}
SETTINGS = (
    queue_settings.SETTINGS
    | queue_settings.BACKOFF
    | {
        "share.delivery.count.limit": str(queue_settings.LOW_DELIVERY_LIMIT),
        "errors.deadletterqueue.topic.name": LETTERS,
    }
)


class QueueWorld(World):
    """Producers of two topics, the second of which is delayed; a share group of both with dead letters; and a consumer
    of the delayed topic. The share group has the name of the other cells' transactional group."""

    topics = QUEUES
    led_topics = (SOURCE, LATER)
    groups = ()

    def create_topics(self) -> None:
        self.cluster.create_topic(SOURCE, SOURCE_PARTITIONS)
        self.cluster.create_topic(LATER, LATER_PARTITIONS, **{"delivery.delay.ms": str(round(DELAY_S * 1000))})
        self.cluster.create_topic(LETTERS, LETTER_PARTITIONS, **{"errors.deadletterqueue.group.enable": "true"})

    def start_workloads(self) -> None:
        group = {"bootstrap": self.cluster.bootstrap, "group": WORKERS, "topics": QUEUES, "settings": SETTINGS}
        asyncio.run(configure_group(share_plan(group), WORKERS, SETTINGS))  # before the first member joins
        source, later = (
            {"topic": SOURCE, "partitions": SOURCE_PARTITIONS},
            {"topic": LATER, "partitions": LATER_PARTITIONS},
        )
        self.work("produce_confluent", "confluent", "ack", pause_s=QUEUE_PAUSE_S, **source)
        self.work("produce_confluent", "later", "ack", pause_s=LATER_PAUSE_S, **later)
        self.work("follow", "late-follower", "seen", **later)
        self.work(
            "share_members", "q", "worked", group=WORKERS, topics=QUEUES, settings=SETTINGS, members=MEMBERS,
            seed=self.rng.randrange(1 << 32),
        )  # fmt: skip
        self.work(
            "share_confluent", "librdkafka", "worked", group=WORKERS, topics=QUEUES, seed=self.rng.randrange(1 << 32)
        )

    def finish_all(self) -> None:
        """Let the producers finish, then wait until the share group and the consumer have all records."""
        self.finish_workloads(["confluent", "later"])
        end = Workload(
            self.home, self.cluster.clients, "share_end", "end", "over", bootstrap=self.cluster.bootstrap,
            group=WORKERS, topics=QUEUES, settings=SETTINGS, letters=LETTERS, letter_partitions=LETTER_PARTITIONS,
        )  # fmt: skip
        self.workloads["end"] = end
        end.wait_finished(time.monotonic() + 2 * FINISH_LIMIT_S)  # locks end after 15 s
        self.finish_workloads(["q", "librdkafka", "late-follower"])

    def describe(self, history: History) -> None:
        done = sum(ack.is_final and ack.outcome is Outcome.OK for ack in history.acks)
        again = sum(delivery.count > 1 for delivery in history.deliveries)
        letters = len(history.letters or ())
        self.outcome.evidence.append(
            f"{done} acknowledgements of the share group were answered, {again} records were delivered again, and"
            f" {letters} have dead letters"
        )

    def settings_of(self, told: Told) -> None:
        history = told.history
        history.delivery_limit = queue_settings.LOW_DELIVERY_LIMIT
        history.backoffs_s = [max(0.0, each - CLOCK_STEP_S) for each in queue_settings.BACKOFFS_S]
        history.delays_s = {LATER: DELAY_S - CLOCK_STEP_S}
