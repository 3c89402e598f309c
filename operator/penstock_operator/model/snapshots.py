"""Snapshots of etcd, and the restore of one: `etcd.snapshots` and `etcd.restore` of a `Cluster`, and their status."""

from __future__ import annotations

from typing import Annotated

from penstock_operator.model.common import Model
from penstock_operator.model.fields import Rule, doc

MAX_INTERVAL_MINUTES = 7 * 24 * 60
SNAPSHOT_NAME = "etcd-[0-9]{8}T[0-9]{6}Z"
"""Pattern of the names of snapshots, whose time is in UTC."""


class SnapshotVolume(Model, frozen=True, kw_only=True):
    """A volume for snapshots."""

    claim_name: Annotated[
        str,
        doc(
            "Name of a PersistentVolumeClaim in the same namespace, on another disk than those of etcd.",
            min_length=1,
            max_length=253,
        ),
    ]


class ObjectStore(Model, frozen=True, kw_only=True):
    """A bucket of an object store with an S3 API."""

    endpoint: Annotated[
        str,
        doc(
            "URL of the object store, such as https://s3.eu-central-1.amazonaws.com.",
            Rule(
                r"self.matches('^https?://[^/@?# ]+/?$')",
                "endpoint must be http://host:port or https://host:port; the bucket is a field of its own",
            ),
            min_length=1,
            max_length=300,
        ),
    ]
    bucket: Annotated[
        str,
        doc(
            "Name of an existing bucket.",
            Rule("self.matches('^[a-z0-9][a-z0-9.-]+$')", "bucket must be the name of a bucket, without prefix"),
            min_length=3,
            max_length=63,
        ),
    ]
    prefix: Annotated[
        str, doc("Prefix of all objects. The operator appends the namespace and the name.", max_length=500)
    ] = ""
    region: Annotated[str, doc("Region of the bucket.", min_length=1, max_length=63)] = "us-east-1"
    secret_name: Annotated[
        str,
        doc(
            "Name of a Secret in the same namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and with ca.crt"
            " if the certificate of the object store is signed by a CA that is not a public one.",
            min_length=1,
            max_length=253,
        ),
    ]


class Snapshots(Model, frozen=True, kw_only=True):
    """Snapshots of etcd on a schedule."""

    rules = (
        Rule(
            "has(self.volume) != has(self.objectStore)",
            "set exactly one of snapshots.volume (a PersistentVolumeClaim) and snapshots.objectStore (a bucket)",
        ),
    )

    interval_minutes: Annotated[
        int,
        doc(
            "Minutes between two snapshots. The first one is taken at once.",
            Rule(
                f"self >= 5 && self <= {MAX_INTERVAL_MINUTES}",
                f"intervalMinutes must be 5 to {MAX_INTERVAL_MINUTES} (a week)",
            ),
            ge=5,
            le=MAX_INTERVAL_MINUTES,
        ),
    ] = 60
    keep_count: Annotated[
        int,
        doc(
            "Number of snapshots to keep. Older ones are deleted after each snapshot.",
            Rule("self >= 1 && self <= 1000", "keepCount must be 1 to 1000"),
            ge=1,
            le=1000,
        ),
    ] = 48
    keep_days: Annotated[
        int,
        doc(
            "Age in days at which snapshots are deleted, except the newest one.",
            Rule("self >= 1 && self <= 3650", "keepDays must be 1 to 3650"),
            ge=1,
            le=3650,
        ),
    ] = 14
    volume: Annotated[SnapshotVolume, doc("Stores snapshots in a volume.")] | None = None
    object_store: Annotated[ObjectStore, doc("Stores snapshots in a bucket.")] | None = None


class Restore(Model, frozen=True, kw_only=True):
    """A restore of the companion etcd, which is done once."""

    snapshot: Annotated[
        str,
        doc(
            "Name of the snapshot, such as etcd-20260310T120000Z: one of status.snapshots.stored, or an older one.",
            Rule(
                f"self.matches('^{SNAPSHOT_NAME}$')",
                "restore.snapshot must be the name of a snapshot, such as etcd-20260310T120000Z",
            ),
            max_length=64,
        ),
    ]
    request: Annotated[
        str,
        doc(
            "Any text. A snapshot is restored once for each text; another one restores it again.",
            Rule(
                "self.matches('^[A-Za-z0-9._-]+$')",
                "restore.request must consist of letters, digits, '.', '_' and '-'",
            ),
            min_length=1,
            max_length=63,
        ),
    ] = "1"


class RestoreStatus(Model, frozen=True, kw_only=True):
    """State of the last restore."""

    snapshot: Annotated[str, doc("Name of the snapshot.")] = ""
    request: Annotated[str, doc("The request in spec.etcd.restore.")] = ""
    phase: Annotated[
        str,
        doc(
            "Waiting: an operation must end first. Verifying: the snapshot is read. Stopping: etcd stops. Preparing:"
            " the snapshot is restored beside the data of each member. Installing: it replaces the data. Starting: etcd"
            " starts. Recovering: brokers report what they know, and continue. Reverting: etcd starts with the data"
            " before the restore. Completed, Failed (nothing has changed) or Refused: the end."
        ),
    ] = ""
    message: Annotated[str, doc("What the phase waits for, or why the restore failed.")] = ""
    start_time: Annotated[str, doc("Time at which the restore was requested, in RFC 3339.")] = ""
    end_time: Annotated[str, doc("Time at which it ended, in RFC 3339.")] = ""


class SnapshotsStatus(Model, frozen=True, kw_only=True):
    """State of the snapshots."""

    last_name: Annotated[str, doc("Name of the last complete snapshot.")] = ""
    last_time: Annotated[str, doc("Time of the last complete snapshot, in RFC 3339.")] = ""
    last_size_bytes: Annotated[int, doc("Size of the last complete snapshot.")] = 0
    last_sha256: Annotated[str, doc("SHA-256 of the last complete snapshot.")] = ""
    stored: Annotated[
        tuple[str, ...], doc("Names of the newest stored snapshots, newest first.", schema={"maxLength": 64})
    ] = ()
    attempt_time: Annotated[str, doc("Time at which the last attempt ended, in RFC 3339.")] = ""
    error: Annotated[str, doc("Why the last attempt failed. Absent if it succeeded.")] = ""
