"""Interleaved pairs: the same load with and without something idle beside it, for differences of a few per cent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from bench.session import Lane, Session
from bench.suites import work
from bench.suites.footprint import resident

ROUNDS = 20
VOLUME_FACTOR = 2  # twice the usual volume, so that 5 % exceeds the noise
SIZE_BYTES = 1024

Surroundings = Callable[[Lane], AbstractContextManager[None]]


def run(session: Session, case: str, lanes: dict[str, tuple[Lane, str]], rounds: int, around: Surroundings) -> None:
    """Run the pairs. `lanes` maps "without" and "with" to a lane and its topic; `around` is entered for each section.

    The first pair is a warm-up and does not count.
    """
    messages = session.options.messages(SIZE_BYTES, VOLUME_FACTOR)
    brokers = list({id(lane.broker): lane.broker for lane, _topic in lanes.values()}.values())
    both = list(lanes.values())
    for round_ in range(-1, rounds):
        for lane, topic in both if round_ % 2 == 0 else reversed(both):
            with around(lane):
                metrics = session.measure(lane, work.produce(session, lane, topic, SIZE_BYTES, 1, messages), brokers)
                if round_ >= 0:
                    session.record(case, lane.name, round_, {**metrics, **resident(lane.broker)})
    session.console.print(f"  {case}: {rounds} pairs")
