"""FastStream at its defaults: a subscriber that publishes what it receives to another topic.

Arguments: bootstrap servers, source topic, target topic.
"""

import asyncio
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker

bootstrap, source, target = sys.argv[1:]
broker = KafkaBroker(bootstrap.split(","))


@broker.subscriber(source, group_id=f"faststream-{source}", auto_offset_reset="earliest")
@broker.publisher(target)
async def copy(value: int) -> str:
    """Copy one record; FastStream decodes JSON."""
    return str(value)


asyncio.run(FastStream(broker).run())
