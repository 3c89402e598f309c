"""`penstock status`: prints a summary of a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping

from penstock.cli.certificates import certificate_failures, certificate_rows, certificates_json
from penstock.cli.common import CommandError, Output, run
from penstock.cli.connection import Connection, with_connection
from penstock.cli.output import print_json, print_table, size_text
from penstock.cli.root import make_app
from penstock.client import BrokerCertificate, ClientError, ClusterInfo, GroupListing, LogDir, TopicInfo
from penstock.wire.errors import ErrorCode

app = make_app()


@app.command()
@with_connection()
def status(output: Output = "text", *, connection: Connection) -> None:
    """Show a summary of a cluster: brokers, certificates, topics, unavailable and under-replicated partitions, groups.

    The exit code is 1 if a log directory has failed, a certificate has expired, or a broker could not load a changed
    one. Certificates are shown to users with the right DescribeConfigs on the cluster.

    Examples:

    - `penstock status`
    - `penstock status --output json | jq .partitions.offline`
    """
    run(show_status(connection, output == "json"))


async def show_status(connection: Connection, as_json: bool) -> None:
    """Print the cluster's summary. Raises `CommandError` for failed log directories and certificates."""
    async with connection.admin() as admin:
        cluster = await admin.describe_cluster()
        topics = await admin.list_topics()
        groups = await admin.list_groups()
        directories = await admin.log_dirs()
        certificates = await admin.broker_certificates(b.node_id for b in cluster.brokers)
    now_ms = time.time_ns() // 1_000_000
    found = document(cluster, topics, groups, directories, certificates)
    failures = [failure_text(d) for d in directories if d.error] + certificate_failures(certificates, now_ms)
    if as_json:
        print_json(found)
    else:
        show(cluster, found, directories)
        if rows := certificate_rows(certificates, now_ms):
            print_table(("broker", "listener", "certificate expires", "in", "changes"), rows)
    if failures:
        raise CommandError("\n".join(failures))


def show(cluster: ClusterInfo, found: dict[str, object], directories: list[LogDir]) -> None:
    """Print the summary as text."""
    partitions, groups = found["partitions"], found["groups"]
    assert isinstance(partitions, dict), "a status has counts of partitions"
    assert isinstance(groups, dict), "a status has counts of groups"
    print(f"cluster {cluster.cluster_id}")
    print_table(
        ("broker", "address", "rack", "controller", "data"),
        [
            (str(b.node_id), b.address, b.rack, "yes" if b.node_id == cluster.controller_id else "",
             data_text(directories, b.node_id))
            for b in cluster.brokers
        ],
    )  # fmt: skip
    print(f"topics {found['topics']:,}  partitions {partitions['total']:,}  groups {groups['total']:,}")
    print(f"partitions without leader {partitions['offline']:,}  under-replicated {partitions['under_replicated']:,}")


def failure_text(directory: LogDir) -> str:
    """Return an error message for a failed log directory."""
    where = f'log directory "{directory.path}" of broker {directory.broker_id}'
    if directory.error is not ErrorCode.KAFKA_STORAGE_ERROR:
        return f"{where} cannot be read: {directory.error.name}"
    return (
        f"{where} has failed (KAFKA_STORAGE_ERROR): the disk returned an I/O error, shown in the broker's log and at "
        "/health/ready, and the broker no longer writes there; check the disk (dmesg), then restart the broker, which "
        "recovers its logs"
    )


def data_text(directories: list[LogDir], broker_id: int) -> str:
    """Return the broker's disk usage, or "failed" if one of its log directories has failed."""
    if any(d.error for d in directories if d.broker_id == broker_id):
        return "failed"
    return size_text(data_bytes(directories, broker_id))


def data_bytes(directories: list[LogDir], broker_id: int) -> int:
    """Return the bytes in all log directories of the broker."""
    return sum(sum(d.partitions.values()) for d in directories if d.broker_id == broker_id)


def document(
    cluster: ClusterInfo,
    topics: dict[str, TopicInfo],
    groups: list[GroupListing],
    directories: list[LogDir],
    certificates: Mapping[int, list[BrokerCertificate] | ClientError],
) -> dict[str, object]:
    """Return the JSON output."""
    partitions = [p for topic in topics.values() for p in topic.partitions.values()]
    states: dict[str, int] = {}
    for group in groups:
        states[group.state] = states.get(group.state, 0) + 1
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": b.node_id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "data_bytes": data_bytes(directories, b.node_id),
                "failed_log_dirs": [d.path for d in directories if d.broker_id == b.node_id and d.error],
                "certificates": certificates_json(certificates[b.node_id]),
            }
            for b in cluster.brokers
        ],
        "topics": len(topics),
        "partitions": {
            "total": len(partitions),
            "offline": sum(p.leader < 0 for p in partitions),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in partitions),
        },
        "groups": {"total": len(groups), "by_state": states},
    }
