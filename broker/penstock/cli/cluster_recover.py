"""`penstock cluster recover`: an etcd restored from a backup becomes the truth again.

Registered by `cluster`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.output import print_json, print_table
from penstock.cli.parameters import MAX_INT32
from penstock.config.options import UpOptions

SHOWN = 50
"""Partitions in a table, unless all are asked for."""


def recover(
    etcd: Annotated[
        list[str],
        typer.Option("--etcd", envvar="PENSTOCK_ETCD", metavar="URL", help="An endpoint of etcd; may be repeated."),
    ],
    etcd_user: Annotated[str | None, typer.Option(help="Where etcd has users.")] = None,
    etcd_password_file: Annotated[str | None, typer.Option(metavar="FILE", help="That user's password.")] = None,
    etcd_ca: Annotated[str | None, typer.Option(metavar="FILE", help="PEM: who signed etcd's certificates.")] = None,
    etcd_cert: Annotated[str | None, typer.Option(metavar="FILE", help="PEM: this client's certificate.")] = None,
    etcd_key: Annotated[str | None, typer.Option(metavar="FILE", help="PEM: this client's key.")] = None,
    without: Annotated[
        list[int] | None,
        typer.Option(
            metavar="BROKER",
            min=0,
            max=MAX_INT32,
            help="A broker that is gone for good: nothing waits for it. May be repeated.",
        ),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show every partition, not only those that differ.")] = False,
    yes: Yes = False,
    output: Output = "text",
) -> None:
    """Recover the cluster after its etcd was restored from a backup: show what would be done, ask, and do it.

    Brokers that find etcd gone back in time freeze: they serve reads, and change or delete nothing. Start all of
    them first: each tells what it has. Then every epoch is raised above any that was seen, and each partition is led
    by the replica with the most, as soon as all that may have it are back. Data that etcd does not know is put aside
    (quarantine/ in the data directory), never deleted.

    Examples:

    - `penstock cluster recover --etcd http://127.0.0.1:2379`
    - `penstock cluster recover --etcd http://127.0.0.1:2379 --yes`
    - `penstock cluster recover --etcd http://127.0.0.1:2379 --without 3 --yes` (broker 3 and its disk are lost)
    """
    options = UpOptions(
        etcd=etcd,
        etcd_user=etcd_user,
        etcd_password_file=etcd_password_file,
        etcd_ca_file=etcd_ca,
        etcd_cert_file=etcd_cert,
        etcd_key_file=etcd_key,
    )
    run(do_recover(options, without or [], show_all, yes, output == "json"))


async def do_recover(options: UpOptions, without: list[int], show_all: bool, yes: bool, as_json: bool) -> None:
    from penstock.node.cluster_recovery import RecoveryFailed, recover_cluster

    def decide(document: dict[str, Any]) -> bool:
        if as_json:
            print_json(document)
        else:
            show(document, show_all)
        confirm("The store is to be recovered like this.", yes)
        return True

    def progress(done: int, of: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done:,} of {of:,} records written", end="\n" if done == of else "", file=sys.stderr, flush=True)

    try:
        epoch = await recover_cluster(options, without, decide, progress)
    except RecoveryFailed as e:
        raise CommandError(str(e), ExitCode.FAILED) from e
    if not as_json:
        print(f"recovered, in controller epoch {epoch}: brokers begin anew by themselves")


def show(document: dict[str, Any], show_all: bool) -> None:
    """For people."""
    print(f"found by broker {document['found_by']}: {document['reason']}")
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
        print(f"not reported: broker {waiting}; their partitions wait until they are back (or --without)")
    show_partitions(document["partitions"], show_all)
    if document["unknown"]:
        print_table(
            ("topic", "topic id", "partition", "broker", "log end"),
            [
                (u["topic"] or "?", u["topic_id"], str(u["partition"]), str(u["broker"]), u["end_offset"])
                for u in document["unknown"]
            ],
            title="Data that etcd does not know: put aside, not deleted",
        )


def show_partitions(partitions: list[dict[str, Any]], show_all: bool) -> None:
    """Those where brokers know more than etcd, first those that may lose something."""
    differing = [p for p in partitions if show_all or differs(p)]
    differing.sort(key=lambda p: not p["may_lose"])
    shown = differing if show_all else differing[:SHOWN]
    print(f"{len(partitions):,} partitions get new leaders; brokers know more than etcd of {len(differing):,}")
    if shown:
        print_table(
            ("topic", "partition", "replicas", "leader epoch", "becomes", "waits for", "log ends", "note"),
            [
                (
                    p["topic"] or p["topic_id"],
                    str(p["partition"]),
                    listed(p["replicas"]),
                    p["leader_epoch"],
                    p["new_leader_epoch"],
                    listed(p["waits_for"]),
                    " ".join(f"{b}:{end['offset']}@{end['epoch']}" for b, end in p["log_ends"].items()),
                    note(p),
                )
                for p in shown
            ],
        )
    if len(shown) < len(differing):
        print(f"and {len(differing) - len(shown):,} more: --all shows them")


def differs(partition: dict[str, Any]) -> bool:
    newest = max((end["epoch"] for end in partition["log_ends"].values()), default=-1)
    return bool(partition["added"] or partition["missing"] or newest > partition["leader_epoch"])


def note(partition: dict[str, Any]) -> str:
    if partition["may_lose"]:
        return "acknowledged records may be lost"
    return f"broker {listed(partition['added'])} has more than the replicas" if partition["added"] else ""


def listed(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))
