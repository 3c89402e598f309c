"""Series that fire each alert of the chart, and series that do not: one value a minute, in promtool's notation.

`_` is a scrape without the series, and `stale` its end: without it, the last value counts for five minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock_charts.prometheus import AlertCase

BROKER = 'namespace="queue", penstock_io_cluster="penstock", pod="penstock-broker-0"'
OTHER = 'namespace="queue", penstock_io_cluster="penstock", pod="penstock-broker-1"'
DISK = f'{BROKER}, directory="/data"'
LISTENER = f'{BROKER}, listener="CLIENTS"'
LAG = f'{BROKER}, group="billing", topic="orders"'
CLUSTER = 'namespace="queue", cluster="penstock"'
OPERATOR, STANDBY = (f'namespace="queue", pod="penstock-operator-{n}"' for n in (0, 1))
OF_PARTITIONS = {"namespace": "queue", "penstock_io_cluster": "penstock"}
OF_CLUSTER = {"namespace": "queue", "cluster": "penstock"}
OF_BROKER = {"namespace": "queue", "pod": "penstock-broker-0"}
GIB = 1024**3
DAY_S = 24 * 3600


def condition(type_: str, status: str, reason: str) -> str:
    """Return the series of a condition with this status and reason."""
    labels = f'{CLUSTER}, condition="{type_}", status="{status}", reason="{reason}"'
    return f"penstock_operator_cluster_condition{{{labels}}}"


def disk(free: str) -> Mapping[str, str]:
    """Return the series of a volume of 100 GiB with these free bytes."""
    return {
        f"penstock_log_directory_free_bytes{{{DISK}}}": free,
        f"penstock_log_directory_total_bytes{{{DISK}}}": f"{100 * GIB}x200",
    }


def snapshots(taken_at_s: str, interval_s: int = 3600) -> Mapping[str, str]:
    """Return the series of a Cluster whose last snapshot was taken at this time. promtool starts at 0."""
    return {
        f"penstock_operator_last_snapshot_timestamp_seconds{{{CLUSTER}}}": taken_at_s,
        f"penstock_operator_snapshot_interval_seconds{{{CLUSTER}}}": f"{interval_s}x400",
    }


CASES: dict[str, Sequence[AlertCase]] = {
    "PenstockClusterNotReady": [
        AlertCase(
            {condition("Ready", "False", "BrokersNotReady"): "1x20"},
            "5m",
            {"the Cluster penstock is not ready": OF_CLUSTER},
        ),
        AlertCase(  # The reason changes, and the fault lasts.
            {
                condition("Ready", "False", "BrokersNotReady"): "1x3 stale",
                condition("Ready", "Unknown", "BrokersUnreachable"): "_x3 1x20",
            },
            "6m",
            {"the Cluster penstock is not ready": OF_CLUSTER},
        ),
        AlertCase({condition("Ready", "False", "BrokersNotReady"): "1x20"}, "4m"),
        AlertCase({condition("Ready", "False", "Hibernated"): "1x200"}, "90m"),
        AlertCase({condition("Ready", "True", "Serving"): "1x200"}, "90m"),
    ],
    "PenstockPartitionsUnderReplicated": [
        AlertCase(
            {
                f"penstock_partitions_under_replicated{{{BROKER}}}": "3x20",
                f"penstock_partitions_under_replicated{{{OTHER}}}": "2x20",
            },
            "5m",
            {"5 partitions of penstock lack replicas in sync": OF_PARTITIONS},
        ),
        AlertCase({f"penstock_partitions_under_replicated{{{BROKER}}}": "3x4 0x20"}, "6m"),
    ],
    "PenstockPartitionsUnderMinIsr": [
        AlertCase(
            {f"penstock_partitions_under_min_isr{{{BROKER}}}": "0 4x20"},
            "2m",
            {"4 partitions of penstock reject acks=all": OF_PARTITIONS},
        ),
        AlertCase({f"penstock_partitions_under_min_isr{{{BROKER}}}": "0 4 0x20"}, "2m"),
    ],
    "PenstockPartitionsOffline": [
        AlertCase(
            {f"penstock_partitions_leaderless{{{BROKER}}}": "2x9", f"penstock_partitions_leaderless{{{OTHER}}}": "2x9"},
            "1m",
            {"partitions of penstock cannot be read or written": OF_PARTITIONS},
        ),
        AlertCase(
            {f"penstock_partitions_offline{{{BROKER}}}": "1x9", f"penstock_partitions_leaderless{{{BROKER}}}": "0x9"},
            "1m",
            {"partitions of penstock cannot be read or written": OF_PARTITIONS},
        ),
        AlertCase(  # All brokers with a replica are down, and the others have nothing to report.
            {
                condition("Healthy", "False", "PartitionsOffline"): "1x9",
                f"penstock_partitions_leaderless{{{BROKER}}}": "0x9",
            },
            "1m",
            {"partitions of penstock cannot be read or written": OF_PARTITIONS},
        ),
        AlertCase({condition("Healthy", "False", "UnderReplicated"): "1x9"}, "9m"),
        AlertCase({f"penstock_partitions_leaderless{{{BROKER}}}": "0 2 0x20"}, "2m"),
    ],
    "PenstockLogDirectoryFailed": [
        AlertCase(
            {f"penstock_log_directory_failed{{{DISK}}}": "0 1x9"},
            "1m",
            {"penstock-broker-0 has stopped writing to /data": {**OF_BROKER, "directory": "/data"}},
        ),
        AlertCase({f"penstock_log_directory_failed{{{DISK}}}": "0x9"}, "9m"),
    ],
    "PenstockCertificateExpiring": [
        AlertCase(
            {f"penstock_tls_certificate_expires_seconds{{{LISTENER}}}": f"{6 * DAY_S}-60x100"},
            "1h",
            {
                "the certificate of listener CLIENTS of penstock-broker-0 expires soon": {
                    **OF_BROKER,
                    "listener": "CLIENTS",
                }
            },
        ),
        AlertCase({f"penstock_tls_certificate_expires_seconds{{{LISTENER}}}": f"{8 * DAY_S}-60x100"}, "90m"),
    ],
    "PenstockCertificateOutdated": [
        AlertCase(
            {f"penstock_tls_certificate_outdated{{{LISTENER}}}": "1x20"},
            "10m",
            {
                "penstock-broker-0 cannot load the new certificate of listener CLIENTS": {
                    **OF_BROKER,
                    "listener": "CLIENTS",
                }
            },
        ),
        AlertCase({f"penstock_tls_certificate_outdated{{{LISTENER}}}": "1x5 0x20"}, "12m"),
    ],
    "PenstockDiskFilling": [
        AlertCase(
            disk(f"{14 * GIB}x200"),
            "10m",
            {
                "the volume of penstock-broker-0 is filling": {
                    **OF_BROKER,
                    "penstock_io_cluster": "penstock",
                    "directory": "/data",
                }
            },
        ),
        AlertCase(  # 40 GiB are free, and are used within two hours.
            disk(f"{60 * GIB}-{GIB // 3}x100"),
            "60m",
            {
                "the volume of penstock-broker-0 is filling": {
                    **OF_BROKER,
                    "penstock_io_cluster": "penstock",
                    "directory": "/data",
                }
            },
        ),
        AlertCase(disk(f"{16 * GIB}x200"), "90m"),
        AlertCase(disk(f"{90 * GIB}-{GIB // 3}x100"), "60m"),
    ],
    "PenstockGroupLagGrowing": [
        AlertCase(
            {f'penstock_group_lag_records{{{LAG}, partition="{n}"}}': "600+10x60" for n in (0, 1)},
            "30m",
            {
                "the group billing has a lag of 1800 records, which is growing": {
                    **OF_PARTITIONS,
                    "group": "billing",
                }
            },
        ),
        AlertCase({f'penstock_group_lag_records{{{LAG}, partition="0"}}': "9000-10x60"}, "30m"),
        AlertCase({f'penstock_group_lag_records{{{LAG}, partition="0"}}': "0+10x60"}, "30m"),
    ],
    "PenstockStateStoreUnhealthy": [
        AlertCase(
            {
                condition("StateStore", "False", "MemberLost"): "1x3 stale",
                condition("StateStore", "False", "Replacing"): "_x3 1x20",
            },
            "6m",
            {"the etcd of penstock is not healthy": OF_CLUSTER},
        ),
        AlertCase(  # All members are down.
            {condition("StateStore", "Unknown", "Unreachable"): "1x20"},
            "5m",
            {"the etcd of penstock is not healthy": OF_CLUSTER},
        ),
        AlertCase({condition("StateStore", "Unknown", "Hibernated"): "1x20"}, "10m"),
        AlertCase({condition("StateStore", "False", "MemberNotReady"): "1x3 stale"}, "6m"),
    ],
    "PenstockStateStoreRejectsWrites": [
        AlertCase(
            {condition("StateStore", "False", reason): "1x20"},
            "1m",
            {"the etcd of penstock rejects writes": OF_CLUSTER},
        )
        for reason in ("QuorumLost", "NoSpace", "Corrupt")
    ]
    + [AlertCase({condition("StateStore", "False", "MemberNotReady"): "1x20"}, "10m")],
    "PenstockSnapshotMissing": [
        AlertCase(
            {condition("Snapshots", "False", "Failed"): "1x20", **snapshots("0+60x400")},
            "15m",
            {"the etcd of penstock has no recent snapshot": OF_CLUSTER},
        ),
        AlertCase(  # No attempt fails, and none succeeds, for three intervals.
            {condition("Snapshots", "True", "Stored"): "1x400", **snapshots("0x400")},
            "200m",
            {"the etcd of penstock has no recent snapshot": OF_CLUSTER},
        ),
        AlertCase(  # Both at a time are one alert.
            {condition("Snapshots", "False", "Overdue"): "1x400", **snapshots("0x400")},
            "200m",
            {"the etcd of penstock has no recent snapshot": OF_CLUSTER},
        ),
        AlertCase(snapshots("0x400"), "180m"),
        AlertCase({condition("Snapshots", "Unknown", "Pending"): "1x400"}, "300m"),
        AlertCase({condition("Snapshots", "False", "Failed"): "1x10 stale", **snapshots("0+60x400")}, "15m"),
    ],
    "PenstockNotSpread": [
        AlertCase(
            {
                condition("Spread", "False", "Crowded"): "1x30 stale",
                condition("Spread", "False", "PlacedBack"): "_x30 1x60",
            },
            "61m",
            {"pods of penstock share a node although another one is free": OF_CLUSTER},
        ),
        AlertCase({condition("Spread", "False", "Moving"): "1x50 stale"}, "61m"),
    ],
    "PenstockDeadLettersWaiting": [
        AlertCase(
            {
                f"penstock_share_dead_letters_pending{{{BROKER}}}": "3x30",
                f"penstock_share_dead_letters_pending{{{OTHER}}}": "2x30",
            },
            "20m",
            {"5 records of penstock await their dead letters": OF_PARTITIONS},
        ),
        AlertCase({f"penstock_share_dead_letters_pending{{{BROKER}}}": "3x10 0x20"}, "20m"),
    ],
    "PenstockDeadLettersDropped": [
        AlertCase(
            {f"penstock_share_dead_letters_dropped_total{{{BROKER}}}": "0x10 5x100"},
            "30m",
            {"dead letters of penstock were dropped": OF_PARTITIONS},
        ),
        AlertCase({f"penstock_share_dead_letters_dropped_total{{{BROKER}}}": "5x200"}, "30m"),
    ],
    "PenstockCoordinatorShardFailed": [
        AlertCase(
            {f"penstock_coordinator_shards_failed{{{BROKER}}}": "0 2x20"},
            "3m",
            {"penstock-broker-0 cannot load 2 coordinator shards": OF_BROKER},
        ),
        AlertCase({f"penstock_coordinator_shards_failed{{{BROKER}}}": "0 1 0x20"}, "3m"),
    ],
    "PenstockUnhandledErrors": [
        AlertCase(
            {
                f"penstock_unhandled_errors_total{{{BROKER}}}": "0x10 1x100",
                f"penstock_unhandled_errors_total{{{OTHER}}}": "0x100",
            },
            "30m",
            {"penstock-broker-0 has run into a bug": OF_BROKER},
        ),
        AlertCase(  # The first scrape after a start has it already.
            {f"penstock_unhandled_errors_total{{{BROKER}}}": "_x20 2x100"},
            "30m",
            {"penstock-broker-0 has run into a bug": OF_BROKER},
        ),
        AlertCase(
            {f"penstock_operator_unhandled_errors_total{{{OPERATOR}}}": "0x10 3x100"},
            "30m",
            {"penstock-operator-0 has run into a bug": {"namespace": "queue", "pod": "penstock-operator-0"}},
        ),
        AlertCase({f"penstock_unhandled_errors_total{{{BROKER}}}": "0x10 1x200"}, "90m"),
        AlertCase({f"penstock_unhandled_errors_total{{{BROKER}}}": "0x200"}, "90m"),
    ],
    "PenstockOperatorAway": [
        AlertCase(
            {f"penstock_operator_leader{{{OPERATOR}}}": "1 stale", f"penstock_operator_leader{{{STANDBY}}}": "0x20"},
            "10m",
            {"no operator is running in queue": {"namespace": "queue"}},
        ),
        AlertCase({}, "5m", {"no operator is running in queue": {"namespace": "queue"}}),
        AlertCase(
            {f"penstock_operator_leader{{{OPERATOR}}}": "1x20", f"penstock_operator_leader{{{STANDBY}}}": "0x20"}, "10m"
        ),
    ],
    "PenstockObjectsFailing": [
        AlertCase(
            {f'penstock_operator_failing_objects{{{OPERATOR}, kind="Topic"}}': "2x20"},
            "15m",
            {"2 objects of kind Topic cannot be reconciled": {"namespace": "queue", "kind": "Topic"}},
        ),
        AlertCase({f'penstock_operator_failing_objects{{{OPERATOR}, kind="Topic"}}': "2x10 0x20"}, "16m"),
    ],
}

_RUNNING = {f"penstock_operator_leader{{{OPERATOR}}}": "1x200", condition("Ready", "True", "Serving"): "1x200"}
HEALTHY: dict[str, Mapping[str, str]] = {
    "a roll": {
        **_RUNNING,
        f"penstock_partitions_under_replicated{{{BROKER}}}": "0 4 4 0 4 0x200",
        f"penstock_unhandled_errors_total{{{BROKER}}}": "_x3 0x200",
        f"penstock_partitions_under_min_isr{{{BROKER}}}": "0x200",
        f"penstock_partitions_leaderless{{{BROKER}}}": "0 1 0 0 1 0x200",
        f"penstock_tls_certificate_outdated{{{LISTENER}}}": "0x200",
        condition("StateStore", "True", "Healthy"): "1x200",
        condition("Progressing", "True", "Rolling"): "1x6 stale",
    },
    "a scale": {
        condition("Ready", "False", "ScalingUp"): "1 1 stale",
        condition("Ready", "True", "Serving"): "_x2 1x200",
        f"penstock_operator_leader{{{OPERATOR}}}": "1x200",
        condition("Spread", "False", "Moving"): "1x9 stale",
        **disk(f"{90 * GIB}-{GIB // 10}x60 {84 * GIB}x140"),
    },
    "a drain of a node": {
        condition("Ready", "True", "Serving"): "1x200",
        f"penstock_operator_leader{{{OPERATOR}}}": "1 stale",
        f"penstock_operator_leader{{{STANDBY}}}": "0 0 1x200",
        condition("StateStore", "False", "MemberNotReady"): "1 1 stale",
        condition("StateStore", "True", "Healthy"): "_x2 1x200",
        condition("Spread", "False", "Crowded"): "1x20 stale",
    },
}
"""Series of a cluster during operations that are no fault."""
