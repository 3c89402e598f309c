"""Settings of Apache Kafka 4.3 that Penstock accepts by name but ignores.

Tools and manifests set them. Most are described as read-only, and can be set only to a fixed value; any other value is
rejected with the reason. Used by `config.broker` and `config.group`, for which these are settings with `is_fixed`. The
settings of `UNUSED_ROWS` take any value that Kafka accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.config.definition import Setting, SettingSynonym, SettingType

TIERED = "tiered storage is not supported"
SHARE = "the states of share groups are stored with their groups, not in an internal topic"
MIGRATION = "a group changes its protocol only while it has no members"
STREAMS = "the streams protocol (KIP-1071) is not supported; members of the classic protocol set their own timeouts"
METRICS = "client metrics (KIP-714) are not collected"

BROKER_ROWS = (
    (
        TIERED,
        """
        follower.fetch.last.tiered.offset.enable boolean* false
        remote.fetch.max.wait.ms int* 500
        remote.list.offsets.request.timeout.ms long* 30000
        remote.log.index.file.cache.total.size.bytes long* 1073741824
        remote.log.manager.copier.thread.pool.size int* 10
        remote.log.manager.copy.max.bytes.per.second long* 9223372036854775807
        remote.log.manager.copy.quota.window.num int 11
        remote.log.manager.copy.quota.window.size.seconds int 1
        remote.log.manager.expiration.thread.pool.size int* 10
        remote.log.manager.fetch.max.bytes.per.second long* 9223372036854775807
        remote.log.manager.fetch.quota.window.num int 11
        remote.log.manager.fetch.quota.window.size.seconds int 1
        remote.log.manager.follower.thread.pool.size int* 2
        remote.log.manager.task.interval.ms long 30000
        remote.log.manager.thread.pool.size int 2
        remote.log.metadata.custom.metadata.max.bytes int 128
        remote.log.metadata.manager.class.name string
        remote.log.metadata.manager.class.path string
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string
        remote.log.reader.max.pending.tasks int 100
        remote.log.reader.threads int* 10
        remote.log.storage.manager.class.name string
        remote.log.storage.manager.class.path string
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
        """,
    ),
    (
        "classes, Kerberos, delegation tokens and tokens of this broker are not supported",
        """
        delegation.token.expiry.check.interval.ms long 3600000
        delegation.token.expiry.time.ms long 86400000
        delegation.token.max.lifetime.ms long 604800000
        delegation.token.secret.key password
        principal.builder.class class*
        sasl.client.callback.handler.class class
        sasl.kerberos.kinit.cmd string* /usr/bin/kinit
        sasl.kerberos.principal.to.local.rules list* DEFAULT
        sasl.kerberos.service.name string*
        sasl.login.callback.handler.class class
        sasl.login.class class
        sasl.login.connect.timeout.ms int
        sasl.login.read.timeout.ms int
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string
        sasl.oauthbearer.assertion.claim.exp.seconds int 300
        sasl.oauthbearer.assertion.claim.iss string
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60
        sasl.oauthbearer.assertion.claim.sub string
        sasl.oauthbearer.assertion.file string
        sasl.oauthbearer.assertion.private.key.file string
        sasl.oauthbearer.assertion.private.key.passphrase password
        sasl.oauthbearer.assertion.template.file string
        sasl.oauthbearer.client.credentials.client.id string
        sasl.oauthbearer.client.credentials.client.secret password
        sasl.oauthbearer.jwt.retriever.class class
        sasl.oauthbearer.jwt.validator.class class
        sasl.oauthbearer.scope string
        sasl.oauthbearer.token.endpoint.url string
        sasl.server.callback.handler.class class
        security.providers string
        ssl.engine.factory.class class*
        ssl.keymanager.algorithm string* SunX509
        ssl.protocol string* TLSv1.3
        ssl.provider string*
        ssl.secure.random.implementation string*
        ssl.trustmanager.algorithm string* PKIX
        """,
    ),
    (
        SHARE,
        """
        share.coordinator.append.linger.ms int -1
        share.coordinator.cached.buffer.max.bytes int* 1048588
        share.coordinator.load.buffer.size int 5242880
        share.coordinator.snapshot.update.records.per.snapshot int 500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2
        share.coordinator.state.topic.num.partitions int 50
        share.coordinator.state.topic.replication.factor short 3
        share.coordinator.state.topic.segment.bytes int 104857600
        share.coordinator.threads int 1
        share.coordinator.write.timeout.ms int 5000
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
    ),
    (
        MIGRATION,
        """
        """,
    ),
    (
        STREAMS,
        """
        group.streams.assignment.interval.ms int* 1000
        group.streams.heartbeat.interval.ms int 5000
        group.streams.initial.rebalance.delay.ms int 3000
        group.streams.max.assignment.interval.ms int 15000
        group.streams.max.heartbeat.interval.ms int 15000
        group.streams.max.session.timeout.ms int 60000
        group.streams.max.size int 2147483647
        group.streams.max.standby.replicas int 2
        group.streams.min.assignment.interval.ms int 0
        group.streams.min.heartbeat.interval.ms int 5000
        group.streams.min.session.timeout.ms int 45000
        group.streams.num.standby.replicas int 0
        group.streams.session.timeout.ms int 45000
        """,
    ),
    (
        "there is no KRaft quorum: etcd stores the cluster's metadata and elects the controller",
        """
        broker.heartbeat.interval.ms int 2000
        controller.listener.names list
        controller.quorum.append.linger.ms int 25
        controller.quorum.auto.join.enable boolean false
        controller.quorum.bootstrap.servers list ''
        controller.quorum.election.backoff.max.ms int 1000
        controller.quorum.election.timeout.ms int 1000
        controller.quorum.fetch.max.bytes int 1048576
        controller.quorum.fetch.snapshot.max.bytes int 1048576
        controller.quorum.fetch.timeout.ms int 2000
        controller.quorum.request.timeout.ms int 2000
        controller.quorum.retry.backoff.ms int 20
        controller.quorum.voters list ''
        controller.socket.timeout.ms int 30000
        early.start.listeners list
        initial.broker.registration.timeout.ms int 60000
        metadata.log.dir string
        metadata.log.max.record.bytes.between.snapshots long 20971520
        metadata.log.max.snapshot.interval.ms long 3600000
        metadata.log.segment.bytes int 1073741824
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        process.roles list broker,controller
        """,
    ),
    (
        "offsets and transactions are kept in the metadata store in 64 shards, not in topics",
        """
        offsets.commit.timeout.ms int 5000
        offsets.load.buffer.size int 5242880
        offsets.topic.compression.codec int 0
        offsets.topic.num.partitions int 64
        offsets.topic.replication.factor short 3
        offsets.topic.segment.bytes int 104857600
        transaction.state.log.load.buffer.size int 5242880
        transaction.state.log.min.isr int 2
        transaction.state.log.num.partitions int 64
        transaction.state.log.replication.factor short 3
        transaction.state.log.segment.bytes int 104857600
        """,
    ),
    (
        "use node.id, --data-dir and --listener",
        """
        broker.id int -1
        cordoned.log.dirs list* ''
        log.dir list
        log.dirs list
        """,
    ),
    (
        "classes cannot be loaded into the broker",
        """
        alter.config.policy.class.name class
        client.quota.callback.class class
        config.providers list* ''
        create.topic.policy.class.name class
        kafka.metrics.reporters list ''
        metric.reporters list* ''
        """,
    ),
    (
        "replication throttles use no quota windows; limit connections per address by connection_creation_rate",
        """
        alter.log.dirs.replication.quota.window.num int 11
        alter.log.dirs.replication.quota.window.size.seconds int 1
        max.connection.creation.rate int* 2147483647
        max.connections.per.ip.overrides string* ''
        replication.quota.window.num int 11
        replication.quota.window.size.seconds int 1
        """,
    ),
    (
        "/metrics exports plain counters without sampling",
        """
        kafka.metrics.polling.interval.secs int 10
        metrics.num.samples int 2
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000
        telemetry.max.bytes int 1048576
        """,
    ),
    (
        "compaction, flushing and recovery of logs work differently",
        """
        log.cleaner.dedupe.buffer.size long* 134217728
        log.cleaner.enable boolean true
        log.cleaner.io.buffer.load.factor double* 0.9
        log.cleaner.io.buffer.size int* 524288
        log.cleaner.io.max.bytes.per.second double* 1.7976931348623157E308
        log.cleaner.threads int* 1
        log.dir.failure.timeout.ms long 30000
        log.flush.offset.checkpoint.interval.ms int 60000
        log.flush.scheduler.interval.ms long 9223372036854775807
        log.flush.start.offset.checkpoint.interval.ms int 60000
        num.recovery.threads.per.data.dir int* 2
        num.replica.alter.log.dirs.threads int
        replica.high.watermark.checkpoint.interval.ms long 5000
        """,
    ),
    (
        "the coordinator always verifies a transaction's partitions, with fixed timing",
        """
        add.partitions.to.txn.retry.backoff.max.ms int 100
        add.partitions.to.txn.retry.backoff.ms int 20
        transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000
        transaction.partition.verification.enable boolean* true
        transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
        transaction.two.phase.commit.enable boolean false
        """,
    ),
    (
        "the kernel sizes socket buffers, and connection timeouts are fixed",
        """
        controlled.shutdown.enable boolean true
        replica.fetch.min.bytes int 1
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        request.timeout.ms int 30000
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        socket.listen.backlog.size int 50
        socket.receive.buffer.bytes int 102400
        socket.send.buffer.bytes int 102400
        """,
    ),
    (
        "one event loop serves all requests, so there are no thread pools, request queues or purgatories to size",
        """
        background.threads int* 10
        group.coordinator.append.linger.ms int -1
        group.coordinator.background.threads int 2
        group.coordinator.cached.buffer.max.bytes int* 1048588
        group.coordinator.rebalance.protocols list classic,consumer
        group.coordinator.threads int 1
        max.request.partition.size.limit int 2000
        num.io.threads int* 1
        num.network.threads int* 1
        num.replica.fetchers int* 1
        queued.max.requests int 500
        """,
    ),
)
"""(reason, rows). Each row is a name, its type with `*` if Kafka can change it at run time, and its value unless unset.
"""

UNUSED_ROWS = (
    (
        "an idle log cleaner waits for events and does not poll",
        """
        log.cleaner.backoff.ms long* 15000 0
        """,
    ),
    (
        "only Kerberos uses it, which is not supported",
        """
        sasl.kerberos.min.time.before.relogin long* 60000
        sasl.kerberos.ticket.renew.jitter double* 0.05
        sasl.kerberos.ticket.renew.window.factor double* 0.8
        """,
    ),
    (
        "only a broker that logs in with a token uses it, which is not supported",
        """
        sasl.login.refresh.buffer.seconds short* 300 0 3600
        sasl.login.refresh.min.period.seconds short* 60 0 900
        sasl.login.refresh.window.factor double* 0.8 0.5 1
        sasl.login.refresh.window.jitter double* 0.05 0 0.25
        """,
    ),
    (
        "a request that waits is removed at once when it completes, so there is nothing to purge",
        """
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        producer.purgatory.purge.interval.requests int 1000
        """,
    ),
)
"""Broker settings whose purpose is met whatever their value: they tune work that Penstock never does.

Same format as `BROKER_ROWS`, followed by the lowest and the highest number that Kafka accepts, unless any is.
"""

GROUP_ROWS = (
    (
        STREAMS,
        """
        streams.assignment.interval.ms int* 1000 group.streams.assignment.interval.ms
        streams.heartbeat.interval.ms int* 5000 group.streams.heartbeat.interval.ms
        streams.initial.rebalance.delay.ms int* 3000 group.streams.initial.rebalance.delay.ms
        streams.num.standby.replicas int* 0 group.streams.num.standby.replicas
        streams.session.timeout.ms int* 45000 group.streams.session.timeout.ms
        """,
    ),
)
"""Same format as `BROKER_ROWS`, followed by the broker setting that is Kafka's default."""

METRICS_ROWS = ((METRICS, "interval.ms int* 300000\nmatch list* ''\nmetrics list* ''"),)


EMPTY = "''"


def parse_rows(groups: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, Setting]]:
    """Yield the name and definition of each row of settings with a fixed value."""
    for known, rest in parse_columns(groups):
        yield known.name, replace(known, synonyms=tuple(map(SettingSynonym, rest)), is_fixed=True)


def parse_unused_rows(groups: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, Setting]]:
    """Yield the name and definition of each row of settings that take any value."""
    for known, bounds in parse_columns(groups):
        number = float if known.kind is SettingType.DOUBLE else int
        minimum, maximum = [*map(number, bounds), None, None][:2]
        yield known.name, replace(known, minimum=minimum, maximum=maximum)


def parse_columns(groups: tuple[tuple[str, str], ...]) -> Iterator[tuple[Setting, list[str]]]:
    """Yield the definition of each row by its first columns, and the text of its further columns."""
    for reason, rows in groups:
        for line in rows.strip().splitlines():
            name, kind, *rest = line.split()
            default = None if not rest else "" if rest[0] == EMPTY else rest[0]
            known = Setting(
                name,
                SettingType[kind.rstrip("*").upper()],
                default,
                f"No effect: {reason}.",
                dynamic=kind.endswith("*"),
                reason=reason,
            )
            yield known, rest[1:]


UNUSED_BROKER_SETTINGS = dict(parse_unused_rows(UNUSED_ROWS))
KAFKA_BROKER_SETTINGS = dict(parse_rows(BROKER_ROWS)) | UNUSED_BROKER_SETTINGS
KAFKA_GROUP_SETTINGS = dict(parse_rows(GROUP_ROWS))
CLIENT_METRICS_SETTINGS = dict(parse_rows(METRICS_ROWS))
