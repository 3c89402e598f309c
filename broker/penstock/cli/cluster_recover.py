"""`penstock cluster recover`: recovers a cluster whose etcd was restored from a backup.

Registered by `cluster`.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.etcd_options import EtcdCa, EtcdCert, EtcdKey, EtcdPasswordFile, EtcdUrls, EtcdUser
from penstock.cli.output import print_json, print_table
from penstock.cli.parameters import MAX_INT32
from penstock.config.options import UpOptions

MAX_WAIT_S = 86_400
MAX_SHOWN_PARTITIONS = 50
"""Rows in the partition table without `--all`."""


def recover(
    etcd: EtcdUrls,
    etcd_user: EtcdUser = None,
    etcd_password_file: EtcdPasswordFile = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    without: Annotated[
        list[int] | None,
        typer.Option(
            metavar="BROKER",
            min=0,
            max=MAX_INT32,
            help="Id of a permanently lost broker, which the recovery does not wait for; may be repeated.",
        ),
    ] = None,
    require: Annotated[
        list[int] | None,
        typer.Option(
            metavar="BROKER",
            min=0,
            max=MAX_INT32,
            help="Id of a broker whose report the recovery must wait for; may be repeated.",
        ),
    ] = None,
    wait: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=MAX_WAIT_S,
            help="Time to wait until the restore is detected and the required brokers have reported.",
        ),
    ] = 0,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every partition, not only those that differ from etcd.")
    ] = False,
    yes: Yes = False,
    output: Output = "text",
) -> None:
    """Recover a cluster whose etcd was restored from a backup. Shows the plan and asks before executing it.

    Brokers that detect an older etcd revision freeze: they serve reads, but change or delete nothing. Start all brokers
    first, so that each reports its replicas. Recovery then raises every epoch above the highest reported one, and
    elects the replica with the longest log as leader once all brokers that may hold it are back. Data unknown to
    etcd is moved to quarantine/ in the data directory, never deleted.

    Examples:

    - `penstock cluster recover --etcd http://127.0.0.1:2379`
    - `penstock cluster recover --etcd http://127.0.0.1:2379 --yes`
    - `penstock cluster recover --etcd http://127.0.0.1:2379 --without 3 --yes` (broker 3 and its disk are lost)
    - `penstock cluster recover --etcd http://127.0.0.1:2379 --require 1 --require 2 --wait 300 --yes`
    """
    options = UpOptions(
        etcd=etcd,
        etcd_user=etcd_user,
        etcd_password_file=etcd_password_file,
        etcd_ca_file=etcd_ca,
        etcd_cert_file=etcd_cert,
        etcd_key_file=etcd_key,
    )
    run(do_recover(options, without or [], require or [], wait, show_all, yes, output == "json"))


async def do_recover(
    options: UpOptions,
    without: list[int],
    required: list[int],
    wait_s: int,
    show_all: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Wait for the reports, show the recovery plan, ask for confirmation, and execute it."""
    from penstock.node.cluster_recovery import RecoveryFailed, recover_cluster

    def decide(document: dict[str, Any]) -> bool:
        if as_json:
            print_json(document)
        else:
            show(document, show_all)
        confirm("Execute this recovery plan?", yes)
        return True

    def show_progress(written: int, total: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if written == total else ""
            print(f"\r{written:,} of {total:,} records written", end=end, file=sys.stderr, flush=True)

    try:
        epoch = await recover_cluster(options, without, decide, show_progress, required=required, wait_s=float(wait_s))
    except RecoveryFailed as e:
        raise CommandError(str(e), ExitCode.FAILED) from e
    if not as_json:
        print(f"recovered in controller epoch {epoch}; the brokers resume automatically")


def show(document: dict[str, Any], show_all: bool) -> None:
    """Print the recovery plan as tables."""
    print(f"detected by broker {document['found_by']}: {document['reason']}")
    print(f"controller epoch {document['controller_epoch']:,} becomes {document['new_controller_epoch']:,}")
    print_table(
        ("broker", "seen epoch", "seen revision", "seen etcd", "replicas"),
        [
            (str(b["broker"]), b["seen_epoch"], b["seen_revision"], b["seen_etcd"], b["replicas"])
            for b in document["brokers"]
        ],
        title="Brokers that have reported",
    )
    if document["awaited"]:
        waiting = ", ".join(map(str, document["awaited"]))
        print(f"not reported: broker {waiting}; their partitions wait for them; use --without for lost brokers")
    show_partitions(document["partitions"], show_all)
    if document["unknown"]:
        print_table(
            ("topic", "topic id", "partition", "broker", "log end"),
            [
                (u["topic"] or "?", u["topic_id"], str(u["partition"]), str(u["broker"]), u["end_offset"])
                for u in document["unknown"]
            ],
            title="Data unknown to etcd: quarantined, not deleted",
        )


def show_partitions(partitions: list[dict[str, Any]], show_all: bool) -> None:
    """Print partitions whose brokers report newer state than etcd; those that may lose records come first."""
    differing = [p for p in partitions if show_all or differs(p)]
    differing.sort(key=lambda p: not p["may_lose"])
    shown = differing if show_all else differing[:MAX_SHOWN_PARTITIONS]
    print(f"{len(partitions):,} partitions get new leaders; {len(differing):,} differ from etcd")
    if shown:
        print_table(
            ("topic", "partition", "replicas", "leader epoch", "becomes", "waits for", "log ends", "note"),
            [
                (
                    p["topic"] or p["topic_id"],
                    str(p["partition"]),
                    join_ids(p["replicas"]),
                    p["leader_epoch"],
                    p["new_leader_epoch"],
                    join_ids(p["waits_for"]),
                    " ".join(f"{b}:{end['offset']}@{end['epoch']}" for b, end in p["log_ends"].items()),
                    partition_note(p),
                )
                for p in shown
            ],
        )
    if len(shown) < len(differing):
        print(f"and {len(differing) - len(shown):,} more; show all with --all")


def differs(partition: dict[str, Any]) -> bool:
    """Return whether a broker reports newer state for the partition than etcd has."""
    newest = max((end["epoch"] for end in partition["log_ends"].values()), default=-1)
    return bool(partition["added"] or partition["missing"] or newest > partition["leader_epoch"])


def partition_note(partition: dict[str, Any]) -> str:
    """Return the table's note on a partition."""
    if partition["may_lose"]:
        return "acknowledged records may be lost"
    return f"broker {join_ids(partition['added'])} holds data but is not a replica" if partition["added"] else ""


def join_ids(brokers: list[int]) -> str:
    """Join broker ids with commas."""
    return ",".join(map(str, brokers))
