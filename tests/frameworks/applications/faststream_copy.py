"""FastStream with `acks="all"`: a subscriber that publishes what it receives to another topic.

FastStream defaults to `acks=1`, with which a record that only the killed leader had is lost, as on Apache Kafka.

Arguments: bootstrap servers, source topic, target topic.
"""

import asyncio
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker

bootstrap, source, target = sys.argv[1:]
broker = KafkaBroker(bootstrap.split(","), acks="all")


@broker.subscriber(source, group_id=f"faststream-{source}", auto_offset_reset="earliest")
@broker.publisher(target)
async def copy(value: int) -> str:
    """Copy one record; FastStream decodes JSON."""
    return str(value)


asyncio.run(FastStream(broker).run())
