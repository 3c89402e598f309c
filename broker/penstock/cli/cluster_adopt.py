"""`penstock cluster adopt`: a broker that was alone becomes the first of a new cluster. Registered by `cli.cluster`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.output import print_json, print_table, size_text
from penstock.cli.progress import ProgressDisplay
from penstock.config.options import DEFAULT_DATA_DIR, UpOptions

if TYPE_CHECKING:
    from penstock.adopt.move import AdoptionPlan


def adopt(
    etcd: Annotated[
        list[str],
        typer.Option(
            envvar="PENSTOCK_ETCD",
            metavar="URL",
            help="The etcd, http(s)://HOST:PORT; may be repeated, for each member.",
        ),
    ],
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="The directory that penstock up --data had.")
    ] = DEFAULT_DATA_DIR,
    etcd_user: Annotated[str | None, typer.Option(metavar="NAME", help="Who to log in to etcd as.")] = None,
    etcd_password_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the password for that.")
    ] = None,
    etcd_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="PEM: who signs the certificates of etcd's members.")
    ] = None,
    etcd_cert: Annotated[str | None, typer.Option(metavar="FILE", help="PEM: a certificate for etcd.")] = None,
    etcd_key: Annotated[str | None, typer.Option(metavar="FILE", help="PEM: its private key.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False,
    yes: Yes = False,
    output: Output = "text",
) -> None:
    """Move a broker that was alone into a new cluster: topics, settings, groups, offsets, transactions, messages.

    Its records go into an etcd that holds no cluster yet; the messages stay where they are. The broker must be stopped.
    Afterwards the directory is a cluster's, with the same cluster id and broker id, and is started with `--etcd`. Where
    this is interrupted, the same command finishes it.

    Examples:

    - `penstock cluster adopt --data /var/lib/penstock --etcd http://10.0.0.1:2379 --dry-run`
    - `penstock cluster adopt --data /var/lib/penstock --etcd http://10.0.0.1:2379 --yes`
    """
    options = UpOptions(
        data_dir=os.path.abspath(data),
        etcd=etcd,
        etcd_user=etcd_user,
        etcd_password_file=etcd_password_file,
        etcd_ca_file=etcd_ca,
        etcd_cert_file=etcd_cert,
        etcd_key_file=etcd_key,
    )
    run(move(options, dry_run, yes, output == "json"))


async def move(options: UpOptions, dry_run: bool, yes: bool, as_json: bool) -> None:
    # They load the store and gRPC, for which no other command waits.
    from penstock.adopt.run import CannotAdopt, EtcdUnreachable, open_adoption

    try:
        async with open_adoption(options) as mover:
            plan = await mover.plan()
            if as_json:
                print_json(document(plan, options))
            else:
                show(plan, options)
            if dry_run or plan.is_done:
                return
            confirm(f"Move {options.data_dir} into this etcd?", yes)
            with ProgressDisplay("keys", total=len(plan.records.values), quiet=as_json) as progress:
                await mover.run(plan, progress.show)
    except CannotAdopt as e:
        raise CommandError(str(e), ExitCode.REFUSED) from e
    except EtcdUnreachable as e:
        raise CommandError(str(e), ExitCode.UNREACHABLE) from e
    if not as_json:
        print(f"moved. Start it with: {start_command(plan, options)}")


def document(plan: AdoptionPlan, options: UpOptions) -> dict[str, object]:
    state = plan.state
    return {
        "cluster_id": state.cluster.cluster_id,
        "broker_id": state.broker_id,
        "data": options.data_dir,
        "state": "moved already" if plan.is_done else "begun before" if plan.is_resumed else "not begun",
        "counts": plan.records.counts,
        "partitions_with_data": state.partitions_with_data,
        "log_bytes": state.log_bytes,
        "was_unclean": state.was_unclean,
        "start": start_command(plan, options),
    }


def show(plan: AdoptionPlan, options: UpOptions) -> None:
    state = plan.state
    if plan.is_done:
        print(f"{options.data_dir} was moved before: this etcd holds its cluster, {state.cluster.cluster_id}.")
        print(f"Start it with: {start_command(plan, options)}")
        return
    print(f"broker {state.broker_id} of cluster {state.cluster.cluster_id}, in {options.data_dir}")
    if state.was_unclean:
        print("it was not stopped in good order: it recovers its logs at its next start, as ever")
    if plan.is_resumed:
        print("this was begun before, and is finished now")
    print_table(("what", "count"), list(plan.records.counts.items()))
    size = size_text(state.log_bytes)
    count = state.partitions_with_data
    print(f"messages stay where they are: {size} in {count:,} partition{'s' * (count != 1)} with data")


def start_command(plan: AdoptionPlan, options: UpOptions) -> str:
    urls = " ".join(f"--etcd {url}" for url in options.etcd)
    return f"penstock up {urls} --id {plan.state.broker_id} --data {options.data_dir}"
