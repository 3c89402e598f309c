"""The settings of the share group of a simulated cluster, drawn by the seed, and its dead-letter topic.

`cluster` draws them; `queueing` has the members.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from penstock.client import Consumer, TopicPartition
from penstock.client.letters import parse_letter
from penstock.share.acknowledgement import AckType
from penstock.wire.record import Record
from penstock_simulation.history import Letter

if TYPE_CHECKING:
    from penstock_simulation.workload import Plan

DELIVERY_LIMIT = 10
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "15000",
    "share.delivery.count.limit": str(DELIVERY_LIMIT),
}
ORDERED_SHARE = BACKOFF_SHARE = 0.4
"""Probability of order by key, and of a back-off, in worlds with a share group."""
KEYS = 20
BACKOFF = {
    "share.redelivery.backoff.ms": "400",
    "share.redelivery.backoff.multiplier": "2",
    "share.redelivery.backoff.max.ms": "1500",
}
BACKOFFS_S = [0.0, 0.4, 0.8, *([1.5] * DELIVERY_LIMIT)]
CHOICES: dict[int | None, float] = {AckType.ACCEPT: 0.8, AckType.RELEASE: 0.1, AckType.REJECT: 0.05, None: 0.05}
"""What a member does with a record, and how often; None: it keeps the record."""
LETTERS = "dlq.orders"
LETTERS_SHARE = 0.6
"""Probability of a dead-letter topic in worlds with a share group."""
LOW_DELIVERY_LIMIT = 3
FORGETFUL_SHARE = 0.3
"""Probability of members that keep many records beyond their locks, in worlds with a share group."""
FORGETFUL_SETTINGS = {
    "share.order.by.key": "true",
    "share.record.lock.duration.ms": "1000",
    "share.delivery.count.limit": "2",
}
FORGETFUL_LIMIT = 2
FORGETFUL_CHOICES: dict[int | None, float] = {AckType.ACCEPT: 0.4, None: 0.6}
BROKER_SETTINGS = {"group.share.min.record.lock.duration.ms": "1000"}
"""Settings of brokers in worlds with a share group."""
FAILING_CHOICES: dict[int | None, float] = {AckType.ACCEPT: 0.65, AckType.RELEASE: 0.2, AckType.REJECT: 0.1, None: 0.05}
"""As `CHOICES`, in half of the worlds with a dead-letter topic."""


def draw_settings(plan: Plan, rng: random.Random, letters_rng: random.Random, forgetful_rng: random.Random) -> None:
    """Choose the settings of the group."""
    plan.queue_settings = dict(SETTINGS)
    plan.queue_choices = CHOICES
    plan.history.delivery_limit = DELIVERY_LIMIT
    if rng.random() < ORDERED_SHARE:
        plan.queue_settings["share.order.by.key"] = "true"
        plan.history.is_ordered_by_key, plan.keys = True, KEYS
    if rng.random() < BACKOFF_SHARE:
        plan.queue_settings |= BACKOFF
        plan.history.backoffs_s = BACKOFFS_S
    if letters_rng.random() < LETTERS_SHARE:
        draw_letters(plan, letters_rng)
    if forgetful_rng.random() < FORGETFUL_SHARE:
        plan.queue_settings |= FORGETFUL_SETTINGS
        plan.history.delivery_limit = FORGETFUL_LIMIT
        plan.queue_choices = FORGETFUL_CHOICES
        plan.history.is_ordered_by_key, plan.keys = True, KEYS


def draw_letters(plan: Plan, rng: random.Random) -> None:
    """Add a dead-letter topic, and let more records fail."""
    plan.letters = [TopicPartition(LETTERS, number) for number in range(rng.choice([1, 2]))]
    plan.others.append((LETTERS, len(plan.letters), False))
    plan.read_apart.add(LETTERS)
    plan.more_configs[LETTERS] = {"errors.deadletterqueue.group.enable": "true"}
    plan.queue_settings["errors.deadletterqueue.topic.name"] = LETTERS
    if rng.random() < 0.3:
        plan.history.copies_letters = False
        plan.queue_settings["errors.deadletterqueue.copy.record.enable"] = "false"
    if rng.random() < 0.5:
        plan.queue_settings["share.delivery.count.limit"] = str(LOW_DELIVERY_LIMIT)
        plan.history.delivery_limit = LOW_DELIVERY_LIMIT
        plan.queue_choices = FAILING_CHOICES


async def read_letters(plan: Plan) -> None:
    """Read all dead letters. Raises `ClientError`."""
    letters: list[Letter] = []
    async with Consumer(
        plan.bootstrap, offset_reset="earliest", request_timeout_ms=5000, auto_create_topics=False
    ) as consumer:
        ends = await consumer.end_offsets(plan.letters)
        consumer.assign(plan.letters)
        while any([await consumer.position(tp) < ends[tp] for tp in plan.letters]):
            for tp, polled in (await consumer.getmany(timeout_ms=500)).items():
                for record in polled:
                    read = Record(record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers))
                    letter = parse_letter(tp, read)
                    source = letter.topic, letter.partition
                    letters.append(
                        Letter(((tp.topic, tp.partition), record.offset), source, letter.source_offset, record.value)
                    )
    plan.history.letters = letters
