"""Options of `df.write` and `writeStream` as one frozen value. Called by `sink` and `jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.kafka import COMMON, pop_connection
from penstock_spark.options.names import reject_unknown
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
"""Codec ids by name, as in the attributes of a batch."""
_OF_SPARK = ("checkpointlocation", "queryname")
"""Spark passes the writer's own settings too."""
REPEATED = ("compare", "skip")
MAX_ID_CHARS = 200
DEFAULT_BATCH_BYTES = 256 << 10
DEFAULT_REQUEST_BYTES = 1 << 20
MAX_REQUEST_BYTES = 512 << 20
DEFAULT_IN_FLIGHT = 5
DEFAULT_GIVE_UP_MS = 120_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""The default of the brokers' limit `transaction.max.timeout.ms`. Kafka's client default of one minute is too short for
many batches."""
MAX_TIMEOUT_MS = 2**31 - 1


class DeliveryGuarantee(Enum):
    """Values of `penstock.delivery`."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a writer."""

    connection: ConnectionOptions
    topic: str | None
    """Topic of all rows, or None. It has precedence over the column `topic`, as in the connector."""
    delivery: DeliveryGuarantee
    transactional_id: str | None
    """None: derived from the query id."""
    skips_repeated: bool
    """Whether a repeated batch is skipped even if its rows differ from the committed ones."""
    acks: int
    """-1: all in-sync replicas; 1: the leader; 0: none."""
    idempotent: bool
    codec: int
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    batch_bytes: int
    """Maximum size of a batch before compression; a single record may be larger."""
    request_bytes: int
    """Maximum size of a request and of a batch before compression; a larger record is sent alone."""
    in_flight: int
    transaction_timeout_ms: int
    creates_topics: bool
    """Whether brokers are asked to create missing topics; their `auto.create.topics.enable` decides."""
    warnings: tuple[str, ...]

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SinkOptions:
        """Parse options. Raises `InvalidOption`; `warnings` has the options of the connector that are ignored."""
        options = OptionReader({name: value for name, value in given.items() if name.lower() not in _OF_SPARK})
        if "path" in options:
            raise InvalidOption('topics have no path; remove the argument of save() or start(), and set option "topic"')
        delivery = DeliveryGuarantee(
            options.pop_choice(
                "penstock.delivery", [one.value for one in DeliveryGuarantee], DeliveryGuarantee.AT_LEAST_ONCE.value
            )
        )
        give_up_ms = options.pop_int("kafka.delivery.timeout.ms", DEFAULT_GIVE_UP_MS, 1, MAX_TIMEOUT_MS)
        transactional_id = options.pop_text("penstock.transactional.id")
        if transactional_id is not None and len(transactional_id) > MAX_ID_CHARS:
            raise InvalidOption(f'option "penstock.transactional.id" is longer than {MAX_ID_CHARS} characters')
        if transactional_id is not None and delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            options.warn('option "penstock.transactional.id" is ignored: "penstock.delivery" is not "exactly-once"')
        repeated = options.pop_choice("penstock.repeated.batch", REPEATED, REPEATED[0])
        if options.pop("includeHeaders") is not None:
            options.warn('option "includeHeaders" is ignored in a writer: a column "headers" is always written')
        acks, idempotent, in_flight = _pop_acks(options, delivery)
        request_bytes = options.pop_int("kafka.max.request.size", DEFAULT_REQUEST_BYTES, 1, MAX_REQUEST_BYTES)
        batch_bytes = options.pop_int("kafka.batch.size", DEFAULT_BATCH_BYTES, 0, MAX_REQUEST_BYTES)
        parsed = cls(
            connection=pop_connection(options, give_up_ms),
            topic=options.pop_text("topic"),
            delivery=delivery,
            transactional_id=transactional_id,
            skips_repeated=repeated == "skip",
            acks=acks,
            idempotent=idempotent,
            codec=CODECS[options.pop_choice("kafka.compression.type", CODECS, "none")],
            batch_bytes=max(1, min(batch_bytes, request_bytes)),
            request_bytes=request_bytes,
            in_flight=in_flight,
            transaction_timeout_ms=options.pop_int(
                "kafka.transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS, 1, MAX_TIMEOUT_MS
            ),
            creates_topics=options.pop_bool("kafka.allow.auto.create.topics", True),
            warnings=(),
        )
        reject_unknown(options, KNOWN, producer=True)
        return replace(parsed, warnings=tuple(options.warnings))


def _pop_acks(options: OptionReader, delivery: DeliveryGuarantee) -> tuple[int, bool, int]:
    """Return acks, whether the producer is idempotent, and the requests in flight per broker, with Kafka's rules."""
    text = options.pop_choice("kafka.acks", ("all", "-1", "1", "0"), "all")
    acks = -1 if text == "all" else int(text)
    is_given = "kafka.enable.idempotence" in options
    idempotent = options.pop_bool("kafka.enable.idempotence", acks == -1)
    in_flight = options.pop_int("kafka.max.in.flight.requests.per.connection", DEFAULT_IN_FLIGHT, 1, 1000)
    if idempotent and acks != -1:
        raise InvalidOption(f'option "kafka.acks" is "{text}"; it must be "all" with "kafka.enable.idempotence"')
    if idempotent and in_flight > DEFAULT_IN_FLIGHT:
        if is_given:
            raise InvalidOption(
                f'option "kafka.max.in.flight.requests.per.connection" is {in_flight}; it must be at most '
                f'{DEFAULT_IN_FLIGHT} with "kafka.enable.idempotence"'
            )
        idempotent = False
    if delivery is DeliveryGuarantee.EXACTLY_ONCE and not idempotent:
        raise InvalidOption(
            "exactly-once delivery needs acks=all, idempotence, and at most "
            f'{DEFAULT_IN_FLIGHT} requests in flight; remove "kafka.acks", "kafka.enable.idempotence" and '
            '"kafka.max.in.flight.requests.per.connection"'
        )
    return acks, idempotent, in_flight
