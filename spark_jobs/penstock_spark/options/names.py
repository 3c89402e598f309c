"""What there is besides the options that are obeyed: those of Kafka's Java client without meaning here, or refused.

Called by `kafka` and at the end of `source` and `sink`, with what they left. "Without meaning" is a warning, so that a
job keeps its options when it moves over from the connector; every other name is an error, so that a misspelt one is
not silently without effect.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.text import OptionReader, did_you_mean

_OF_JAVA = "it tunes the Java client, which is not used here"
_SHARED = """
auto.include.jmx.reporter client.dns.lookup client.rack connections.max.idle.ms enable.metrics.push
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
socket.connection.setup.timeout.max.ms
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms
sasl.login.retry.backoff.ms ssl.cipher.suites ssl.enabled.protocols ssl.keymanager.algorithm ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm
""".split()
_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms default.api.timeout.ms exclude.internal.topics
fetch.max.wait.ms fetch.min.bytes group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
""".split()
_PRODUCER = """
buffer.memory max.block.ms metadata.max.idle.ms partitioner.adaptive.partitioning.enable
partitioner.availability.timeout.ms
""".split()
_LEVEL = "each codec is used at its default level"
_WITHOUT_MEANING = {
    "check.crcs": "the CRC of each batch is checked, always",
    "compression.gzip.level": _LEVEL,
    "compression.lz4.level": _LEVEL,
    "compression.zstd.level": _LEVEL,
    "linger.ms": "batches are cut from rows that are there already, so nothing waits for more of them",
    "retries": "what fails is repeated until 'kafka.delivery.timeout.ms' is over",
}
_TOKENS = "authentication there is by 'kafka.sasl.jaas.config' with PLAIN or SCRAM"
_PEM_FILES = "give the file of the PEM by 'kafka.ssl.truststore.location' or 'kafka.ssl.keystore.location' instead"
_REFUSED = {
    "config.providers": "values are taken as they stand",
    "security.providers": "no Java class can be called from here",
    "interceptor.classes": "no Java class can be called from here, and interceptors could change records",
    "sasl.client.callback.handler.class": "no Java class can be called from here",
    "sasl.login.callback.handler.class": "no Java class can be called from here",
    "sasl.login.class": "no Java class can be called from here",
    "ssl.engine.factory.class": "no Java class can be called from here",
    "ssl.truststore.certificates": _PEM_FILES,
    "ssl.keystore.certificate.chain": _PEM_FILES,
    "ssl.keystore.key": _PEM_FILES,
}
_REFUSED_BY_CONSUMER = {
    "auto.offset.reset": "say where to begin by 'startingOffsets'; a query that goes on does so where it stood",
    "enable.auto.commit": "what a query has read stands in its checkpoint; 'penstock.progress.group' publishes it",
    "key.deserializer": "keys are binary; turn them into something else by expressions on the DataFrame",
    "value.deserializer": "values are binary; turn them into something else by expressions on the DataFrame",
}
_REFUSED_BY_PRODUCER = {
    "key.serializer": "keys are strings or binary; turn them into that by expressions on the DataFrame",
    "value.serializer": "values are strings or binary; turn them into that by expressions on the DataFrame",
    "partitioner.class": "no Java class can be called from here; give a column 'partition' to choose partitions",
    "partitioner.ignore.keys": "rows with a key go where Kafka's own partitioner sends them",
    "transactional.id": "the sink opens transactions itself: set 'penstock.delivery' to exactly-once, and "
    "'penstock.transactional.id' where the name matters",
    "transaction.two.phase.commit.enable": "the sink ends each transaction with its batch",
}
_NEVER = ("sasl.oauthbearer.",)


def settle(options: OptionReader, known: Iterable[str], producer: bool) -> None:
    """Warns of each option that is left and without meaning; raises `InvalidOption` for any other."""
    quiet = {**dict.fromkeys([*_SHARED, *(_PRODUCER if producer else _CONSUMER)], _OF_JAVA), **_WITHOUT_MEANING}
    refused = {**_REFUSED, **(_REFUSED_BY_PRODUCER if producer else _REFUSED_BY_CONSUMER)}
    for name in options.left():
        bare = name.removeprefix("kafka.")
        if bare != name and bare in refused:
            raise InvalidOption(f"option {name!r} is not supported: {refused[bare]}")
        if bare != name and bare.startswith(_NEVER):
            raise InvalidOption(f"option {name!r} is not supported: {_TOKENS}")
        if bare != name and bare in quiet:
            options.take(name)
            options.warn(f"option {name!r} has no meaning here: {quiet[bare]}")
            continue
        raise InvalidOption(unknown(name, [*known, *(f"kafka.{one}" for one in {*quiet, *refused})]))


def unknown(name: str, known: list[str]) -> str:
    """Names the near one; a setting of Kafka's without its prefix is the commonest slip."""
    prefixed = {one.lower(): one for one in known}.get(f"kafka.{name}")
    near = f"; did you mean {prefixed!r}?" if prefixed else did_you_mean(name, known)
    return f"there is no option {name!r}{near or '; the reference of options lists all of them'}"
