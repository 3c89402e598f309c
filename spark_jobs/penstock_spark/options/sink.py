"""`df.write` and `writeStream`: the options as one frozen value. Called by `sink` and `jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.kafka import COMMON, take_connection
from penstock_spark.options.names import settle
from penstock_spark.options.text import OptionReader

KNOWN = (
    "topic",
    "includeHeaders",
    "penstock.delivery",
    "penstock.transactional.id",
    "penstock.repeated.batch",
    "kafka.acks",
    "kafka.enable.idempotence",
    "kafka.compression.type",
    "kafka.batch.size",
    "kafka.max.request.size",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.delivery.timeout.ms",
    "kafka.transaction.timeout.ms",
    "kafka.allow.auto.create.topics",
    *COMMON,
)
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""By name, as in a batch's attributes."""
_OF_SPARK = ("checkpointlocation", "queryname")
"""Spark hands the writer's own settings over too."""
REPEATED = ("compare", "skip")
MAX_ID_CHARS = 200
DEFAULT_BATCH_BYTES = 256 << 10
DEFAULT_REQUEST_BYTES = 1 << 20
MAX_REQUEST_BYTES = 512 << 20
DEFAULT_IN_FLIGHT = 5
DEFAULT_GIVE_UP_MS = 120_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""What brokers allow unless `transaction.max.timeout.ms` says otherwise. Kafka's own default, a minute, is shorter than
many a batch."""
MAX_TIMEOUT_MS = 2**31 - 1


class DeliveryGuarantee(Enum):
    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    connection: ConnectionOptions
    topic: str | None
    """Where rows go that have no topic of their own, and those that have: the option wins over the column, as in the
    connector."""
    delivery: DeliveryGuarantee
    transactional_id: str | None
    """None: derived from the query's id."""
    skips_repeated: bool
    """Whether a batch that was committed and comes again is skipped even where it has other rows now."""
    acks: int
    """-1: all in-sync replicas; 1: the leader; 0: nobody."""
    idempotent: bool
    codec: int
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    batch_bytes: int
    """Of a batch before compression, at most; a single record may be larger."""
    request_bytes: int
    """Of a request, and of a batch before compression, at most; a larger record goes alone."""
    in_flight: int
    transaction_timeout_ms: int
    creates_topics: bool
    """Whether brokers are asked to create a topic that does not exist; `auto.create.topics.enable` there decides."""
    warnings: tuple[str, ...]

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SinkOptions:
        """Raises `InvalidOption`. Options of the connector that have no meaning here come back as `warnings`."""
        options = OptionReader({name: value for name, value in given.items() if name.lower() not in _OF_SPARK})
        if "path" in options:
            raise InvalidOption("topics have no path: leave the argument of save() or start() away, and set 'topic'")
        delivery = DeliveryGuarantee(
            options.take_choice(
                "penstock.delivery", [one.value for one in DeliveryGuarantee], DeliveryGuarantee.AT_LEAST_ONCE.value
            )
        )
        give_up_ms = options.take_whole("kafka.delivery.timeout.ms", DEFAULT_GIVE_UP_MS, 1, MAX_TIMEOUT_MS)
        transactional_id = options.take_text("penstock.transactional.id")
        if transactional_id is not None and len(transactional_id) > MAX_ID_CHARS:
            raise InvalidOption(f"option 'penstock.transactional.id' has more than {MAX_ID_CHARS} characters")
        if transactional_id is not None and delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            options.warn("option 'penstock.transactional.id' has no meaning unless 'penstock.delivery' is exactly-once")
        repeated = options.take_choice("penstock.repeated.batch", REPEATED, REPEATED[0])
        if options.take("includeHeaders") is not None:
            options.warn(
                "option 'includeHeaders' has no meaning in a writer: a column 'headers' is written if there is one"
            )
        acks, idempotent, in_flight = _take_acks(options, delivery)
        request_bytes = options.take_whole("kafka.max.request.size", DEFAULT_REQUEST_BYTES, 1, MAX_REQUEST_BYTES)
        batch_bytes = options.take_whole("kafka.batch.size", DEFAULT_BATCH_BYTES, 0, MAX_REQUEST_BYTES)
        parsed = cls(
            connection=take_connection(options, give_up_ms),
            topic=options.take_text("topic"),
            delivery=delivery,
            transactional_id=transactional_id,
            skips_repeated=repeated == "skip",
            acks=acks,
            idempotent=idempotent,
            codec=CODECS[options.take_choice("kafka.compression.type", CODECS, "none")],
            batch_bytes=max(1, min(batch_bytes, request_bytes)),
            request_bytes=request_bytes,
            in_flight=in_flight,
            transaction_timeout_ms=options.take_whole(
                "kafka.transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS, 1, MAX_TIMEOUT_MS
            ),
            creates_topics=options.take_bool("kafka.allow.auto.create.topics", True),
            warnings=(),
        )
        settle(options, KNOWN, producer=True)
        return replace(parsed, warnings=tuple(options.warnings))


def _take_acks(options: OptionReader, delivery: DeliveryGuarantee) -> tuple[int, bool, int]:
    """acks, whether the producer is idempotent, and how many requests a broker may have before it; Kafka's rules."""
    text = options.take_choice("kafka.acks", ("all", "-1", "1", "0"), "all")
    acks = -1 if text == "all" else int(text)
    wanted = "kafka.enable.idempotence" in options
    idempotent = options.take_bool("kafka.enable.idempotence", acks == -1)
    in_flight = options.take_whole("kafka.max.in.flight.requests.per.connection", DEFAULT_IN_FLIGHT, 1, 1000)
    if idempotent and acks != -1:
        raise InvalidOption(f"option 'kafka.acks' is {text}: with 'kafka.enable.idempotence' it must be all")
    if idempotent and in_flight > DEFAULT_IN_FLIGHT:
        if wanted:
            raise InvalidOption(
                f"option 'kafka.max.in.flight.requests.per.connection' is {in_flight}: with "
                f"'kafka.enable.idempotence' it is at most {DEFAULT_IN_FLIGHT}"
            )
        idempotent = False
    if delivery is DeliveryGuarantee.EXACTLY_ONCE and not idempotent:
        raise InvalidOption(
            "exactly-once needs acks=all, idempotence, and at most "
            f"{DEFAULT_IN_FLIGHT} requests in flight: leave 'kafka.acks', 'kafka.enable.idempotence' and "
            "'kafka.max.in.flight.requests.per.connection' away"
        )
    return acks, idempotent, in_flight
