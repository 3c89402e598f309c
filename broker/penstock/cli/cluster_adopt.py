"""`penstock cluster adopt`: turns a single-node broker into the first broker of a new cluster. Registered by
`cli.cluster`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.common import CommandError, ExitCode, Output, Yes, confirm, run
from penstock.cli.etcd_options import EtcdCa, EtcdCert, EtcdKey, EtcdPasswordFile, EtcdUrls, EtcdUser
from penstock.cli.output import print_json, print_table, size_text
from penstock.cli.progress import ProgressDisplay
from penstock.config.options import DEFAULT_DATA_DIR, UpOptions

if TYPE_CHECKING:
    from penstock.adopt.move import AdoptionPlan


def adopt(
    etcd: EtcdUrls,
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Data directory of the single-node broker.")
    ] = DEFAULT_DATA_DIR,
    etcd_user: EtcdUser = None,
    etcd_password_file: EtcdPasswordFile = None,
    etcd_ca: EtcdCa = None,
    etcd_cert: EtcdCert = None,
    etcd_key: EtcdKey = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only; move nothing.")] = False,
    yes: Yes = False,
    output: Output = "text",
) -> None:
    """Move a single-node broker into a new cluster, with topics, settings, groups, offsets and transactions.

    Metadata is copied to an etcd that holds no cluster yet; messages stay in the data directory. The broker must be
    stopped. Afterwards the data directory belongs to a cluster broker with the same cluster id and broker id, which is
    started with `--etcd`. If interrupted, run the same command again to finish.

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
    run(adopt_broker(options, dry_run, yes, output == "json"))


async def adopt_broker(options: UpOptions, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the adoption plan and execute it after confirmation."""
    # Imported here: these load the store and gRPC, which no other command needs.
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
        print(f"moved; start the broker with: {start_command(plan, options)}")


def document(plan: AdoptionPlan, options: UpOptions) -> dict[str, object]:
    """Return the JSON output."""
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
    """Print the adoption plan."""
    state = plan.state
    if plan.is_done:
        print(f"{options.data_dir} was already moved: this etcd holds its cluster, {state.cluster.cluster_id}")
        print(f"start the broker with: {start_command(plan, options)}")
        return
    print(f"broker {state.broker_id} of cluster {state.cluster.cluster_id}, in {options.data_dir}")
    if state.was_unclean:
        print("the broker was not shut down cleanly; it recovers its logs at the next start")
    if plan.is_resumed:
        print("resuming an interrupted move")
    print_table(("what", "count"), list(plan.records.counts.items()))
    size = size_text(state.log_bytes)
    count = state.partitions_with_data
    print(f"messages stay in place: {size} in {count:,} partition{'s' * (count != 1)} with data")


def start_command(plan: AdoptionPlan, options: UpOptions) -> str:
    """Return the command that starts the broker after the move."""
    urls = " ".join(f"--etcd {url}" for url in options.etcd)
    return f"penstock up {urls} --id {plan.state.broker_id} --data {options.data_dir}"
