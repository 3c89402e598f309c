"""Options of Kafka's Java client that are ignored or rejected here.

Called at the end of `source` and `sink`, with the options that they did not read. An ignored option is a warning, so
that a job can keep its options when it migrates from the connector. Any other name is an error, so that a misspelt
option does not go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.addresses import quoted
from penstock_spark.model.errors import InvalidOption
from penstock_spark.options.text import OptionReader, did_you_mean

_OF_JAVA = "it tunes the Java client, which this format does not use"
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
_IGNORED = {
    "check.crcs": "the CRC of each batch is always checked",
    "compression.gzip.level": _LEVEL,
    "compression.lz4.level": _LEVEL,
    "compression.zstd.level": _LEVEL,
    "linger.ms": "batches are cut from rows that are available already, so there is no wait",
    "retries": 'requests are retried until "kafka.delivery.timeout.ms"',
}
_TOKENS = 'use "kafka.sasl.jaas.config" with PLAIN or SCRAM'
_PEM_FILES = 'set "kafka.ssl.truststore.location" or "kafka.ssl.keystore.location" to a PEM file'
_REJECTED = {
    "config.providers": "values are used as they are",
    "security.providers": "this format cannot call Java classes",
    "interceptor.classes": "this format cannot call Java classes such as interceptors",
    "sasl.client.callback.handler.class": "this format cannot call Java classes",
    "sasl.login.callback.handler.class": "this format cannot call Java classes",
    "sasl.login.class": "this format cannot call Java classes",
    "ssl.engine.factory.class": "this format cannot call Java classes",
    "ssl.truststore.certificates": _PEM_FILES,
    "ssl.keystore.certificate.chain": _PEM_FILES,
    "ssl.keystore.key": _PEM_FILES,
}
_REJECTED_BY_CONSUMER = {
    "auto.offset.reset": 'set "startingOffsets"; a restarted query continues from its checkpoint',
    "enable.auto.commit": 'the checkpoint has the query\'s offsets; "penstock.progress.group" publishes them',
    "key.deserializer": "keys are binary; convert them with expressions on the DataFrame",
    "value.deserializer": "values are binary; convert them with expressions on the DataFrame",
}
_REJECTED_BY_PRODUCER = {
    "key.serializer": "keys are strings or binary; convert them with expressions on the DataFrame",
    "value.serializer": "values are strings or binary; convert them with expressions on the DataFrame",
    "partitioner.class": 'this format cannot call Java classes; add a column "partition" to choose partitions',
    "partitioner.ignore.keys": "rows with a key go to the partition of Kafka's default partitioner",
    "transactional.id": 'the sink opens transactions itself; set "penstock.delivery" to "exactly-once", and '
    '"penstock.transactional.id" if the name matters',
    "transaction.two.phase.commit.enable": "the sink ends each transaction with its batch",
}
_NEVER = ("sasl.oauthbearer.",)


def reject_unknown(options: OptionReader, known: Iterable[str], producer: bool) -> None:
    """Warn of each remaining option that is ignored; raise `InvalidOption` for any other."""
    ignored = {**dict.fromkeys([*_SHARED, *(_PRODUCER if producer else _CONSUMER)], _OF_JAVA), **_IGNORED}
    rejected = {**_REJECTED, **(_REJECTED_BY_PRODUCER if producer else _REJECTED_BY_CONSUMER)}
    for name in options.remaining():
        bare = name.removeprefix("kafka.")
        if bare != name and bare in rejected:
            raise InvalidOption(f"option {quoted(name)} is not supported: {rejected[bare]}")
        if bare != name and bare.startswith(_NEVER):
            raise InvalidOption(f"option {quoted(name)} is not supported; {_TOKENS}")
        if bare != name and bare in ignored:
            options.pop(name)
            options.warn(f"option {quoted(name)} is ignored: {ignored[bare]}")
            continue
        raise InvalidOption(unknown_option(name, [*known, *(f"kafka.{one}" for one in {*ignored, *rejected})]))


def unknown_option(name: str, known: list[str]) -> str:
    """Return the message for an unknown option, with the most similar one. The prefix `kafka.` is often forgotten."""
    prefixed = {one.lower(): one for one in known}.get(f"kafka.{name}")
    near = f"; did you mean {quoted(prefixed)}?" if prefixed else did_you_mean(name, known)
    return f"unknown option {quoted(name)}{near or '; see the list of options in the guide'}"
