"""Quix Streams, exactly once: numbers the records of each key in a state store and writes `value:number`.

Arguments: bootstrap servers, source topic, target topic, state folder.
"""

import sys

from quixstreams import Application, State

bootstrap, source, target, state_dir = sys.argv[1:]
application = Application(
    broker_address=bootstrap,
    consumer_group=f"quix-{source}",
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    state_dir=state_dir,
    commit_interval=0.3,
    auto_create_topics=True,
    producer_extra_config={"batch.num.messages": 5, "linger.ms": 0},
)


def number(value: str, state: State) -> str:
    """Count the records of a key."""
    count = state.get("count", 0) + 1
    state.set("count", count)
    return f"{value}:{count}"


frame = application.dataframe(
    application.topic(source, value_deserializer="string", key_deserializer="string"),
)
frame = frame.apply(number, stateful=True)
frame.to_topic(application.topic(target, value_serializer="string", key_serializer="string"))
application.run()
