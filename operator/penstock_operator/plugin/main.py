"""Command line of the plugin `kubectl penstock`: shows Penstock's resources, and requests changes of the operator."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NoReturn

import msgspec
import typer

from penstock.cli.output import print_json, print_table
from penstock_operator.plugin import changes, health
from penstock_operator.plugin.access import EVENTS, KubeOptions, NoAccess, ResourceReader, connect
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, PODS, KubeError, Object
from penstock_operator.specs import names

EXIT_UNHEALTHY, EXIT_NO_ACCESS = 1, 3

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Format = Literal["text", "json"]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace (default: that of the context).")]
Context = Annotated[str, typer.Option(help="Context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option(help="Kubeconfig file (default: KUBECONFIG, then ~/.kube/config).")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")]
OutputFormat = Annotated[Format, typer.Option("--output", "-o", help="`text`, or `json` for scripts.")]
ClusterName = Annotated[str, typer.Option("--cluster", "-c", help="Cluster (default: the only one of the namespace).")]


@app.callback()
def about() -> None:
    """See and operate Penstock's Clusters, Topics, ConsumerGroups and Users.

    Reads only what the resources, pods and Events say, and changes only annotations and specs, which the operator
    executes: nothing is done that `kubectl` could not do.

    Exit codes: 0 success; 1 an object is not healthy, does not exist, or rejects the change; 2 wrong usage; 3 the API
    server cannot be reached.
    """


@app.command()
def status(
    all_namespaces: AllNamespaces = False, output: OutputFormat = "text",
    namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Show the Clusters, and all objects that are not healthy. The exit code is 1 if there are some.

    Examples:

    - `kubectl penstock status`
    - `kubectl penstock status -A -o json | jq '.problems[].name'`
    """

    async def query(reader: ResourceReader) -> None:
        kinds = list(health.KINDS)
        lists = await asyncio.gather(
            *(reader.list_objects(health.KINDS[kind], all_namespaces=all_namespaces) for kind in kinds)
        )
        bodies = dict(zip(kinds, lists, strict=True))
        problems = [p for kind in kinds for body in bodies[kind] for p in health.problems_of(kind, body)]
        if output == "json":
            counts = {resource.plural: len(bodies[kind]) for kind, resource in health.KINDS.items()}
            clusters = [cluster_summary(body) for body in bodies["Cluster"]]
            print_json(
                {"clusters": clusters, "objects": counts, "problems": [msgspec.to_builtins(p) for p in problems]}
            )
        else:
            show_status(bodies, problems, reader.namespace, all_namespaces=all_namespaces)
        if problems:
            raise typer.Exit(EXIT_UNHEALTHY)

    run(KubeOptions(kubeconfig, context, namespace), query)


def cluster_summary(body: Object) -> dict[str, Any]:
    """Return the row of a Cluster."""
    found = body.get("status") or {}
    return {
        "namespace": body["metadata"].get("namespace", ""),
        "name": body["metadata"]["name"],
        "ready": health.status_of(body, "Ready"),
        "healthy": health.status_of(body, "Healthy"),
        "progressing": health.status_of(body, "Progressing"),
        "hibernated": health.status_of(body, "Hibernated"),
        "brokers": (body.get("spec") or {}).get("brokers", {}).get("replicas"),
        "available": found.get("readyReplicas"),
        "version": found.get("version"),
    }


def show_status(
    bodies: dict[str, list[Object]], problems: Sequence[health.ObjectProblem], namespace: str, *, all_namespaces: bool
) -> None:
    """Print the status as tables."""
    clusters = [cluster_summary(body) for body in bodies["Cluster"]]
    if not clusters:
        print("no Clusters" + ("" if all_namespaces else f' in namespace "{namespace}"; -A shows all namespaces'))
    else:
        columns = ("cluster", "ready", "healthy", "progressing", "hibernated", "available", "version")
        rows = [
            (place(c["namespace"], c["name"], all_namespaces), c["ready"], c["healthy"], c["progressing"],
             c["hibernated"], f"{c['available'] or 0} of {c['brokers']}", c["version"])
            for c in clusters
        ]  # fmt: skip
        print_table(columns, rows)
    counts = ", ".join(f"{len(bodies[kind]):,} {health.KINDS[kind].plural}" for kind in bodies)
    print(f"{counts}; {len(problems):,} problems")
    if problems:
        print_table(
            ("kind", "name", "condition", "reason", "message"),
            [(p.kind, place(p.namespace, p.name, all_namespaces), p.condition, p.reason, p.message) for p in problems],
        )


def place(namespace: str, name: str, all_namespaces: bool) -> str:
    """Return the name of an object, with its namespace if several are shown."""
    return f"{namespace}/{name}" if all_namespaces else name


@app.command()
def top(
    disk: Annotated[bool, typer.Option("--disk", help="Also show how full the volumes are.")] = False,
    all_namespaces: AllNamespaces = False, output: OutputFormat = "text",
    namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Show each broker's state, replicas, leaders and node, as of the operator's last reconciliation.

    The status has no bytes, which would change it all the time. `--disk` reads them from the brokers' metrics, through
    the API server: this requires the right to get `pods/proxy`.

    Examples:

    - `kubectl penstock top`
    - `kubectl penstock top --disk`
    - `kubectl penstock top -o json | jq 'map(.leaders) | add'`
    """

    async def query(reader: ResourceReader) -> None:
        rows = health.broker_rows(await reader.list_objects(CLUSTERS, all_namespaces=all_namespaces))
        if disk:
            await add_volumes(reader, rows)
        if output == "json":
            print_json(rows)
            return
        print_table(
            ("cluster", "broker", "state", "replicas", "leaders", "controller", "node", "zone", "version",
             *(("used GiB", "of GiB") if disk else ())),
            [
                (place(r["namespace"], r["cluster"], all_namespaces), str(r["broker"]), r["state"], r["replicas"],
                 r["leaders"], "yes" if r["isController"] else "", r["node"], r["zone"], r["version"],
                 *((gib(r["usedBytes"]), gib(r["volumeBytes"])) if disk else ()))
                for r in rows
            ],
        )  # fmt: skip

    run(KubeOptions(kubeconfig, context, namespace), query)


async def add_volumes(reader: ResourceReader, rows: Sequence[dict[str, Any]]) -> None:
    """Add used and total bytes of each broker's volume; None for a broker that does not answer."""

    async def volume_of(row: dict[str, Any]) -> None:
        row["usedBytes"] = row["volumeBytes"] = None
        pod = names.pod(row["cluster"], row["broker"])
        try:
            row["usedBytes"], row["volumeBytes"] = health.volume_bytes(await reader.pod_metrics(row["namespace"], pod))
        except KubeError as error:
            if error.status == 403:
                raise

    await asyncio.gather(*(volume_of(row) for row in rows))


def gib(size: int | None) -> str:
    """Return a size in GiB; "-" if it is unknown."""
    return "-" if size is None else f"{size / (1 << 30):.2f}"


@app.command()
def why(
    kind: Annotated[str, typer.Argument(help="cluster, topic, group or user; also plurals and short names.")],
    name: Annotated[str, typer.Argument(help="Name of the object.")],
    output: OutputFormat = "text",
    namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Show an object's conditions, its recent Events, and what it waits for. The exit code is 1 if it waits.

    Examples:

    - `kubectl penstock why cluster penstock`
    - `kubectl penstock why topic orders`
    """
    found_kind = health.kind_of(kind)
    if found_kind is None:
        raise typer.BadParameter(f'"{kind}" is not one of cluster, topic, group, user', param_hint="KIND")

    async def query(reader: ResourceReader) -> None:
        body = await reader.get(health.KINDS[found_kind], name)
        if body is None:
            fail(f'{found_kind} "{name}" does not exist in namespace "{reader.namespace}"; set --namespace')
        cluster = await cluster_of(reader, found_kind, body)
        about = [name]
        if found_kind == "Cluster":
            pods = await reader.list_objects(PODS, query={"labelSelector": f"{names.CLUSTER_LABEL}={name}"})
            about += [names.stateful_set(name), *(str(pod["metadata"]["name"]) for pod in pods)]
        events = health.recent_events(await reader.list_objects(EVENTS), about)
        waits = health.waits_of(found_kind, body, cluster)
        if output == "json":
            print_json({"conditions": health.ordered_conditions(body), "events": events, "waits": waits})
        else:
            show_why(found_kind, body, events, waits)
        if waits:
            raise typer.Exit(EXIT_UNHEALTHY)

    run(KubeOptions(kubeconfig, context, namespace), query)


async def cluster_of(reader: ResourceReader, kind: str, body: Object) -> Object | None:
    """Return the Cluster of a Topic, ConsumerGroup or User."""
    name = ((body.get("spec") or {}).get("clusterRef") or {}).get("name")
    return await reader.get(CLUSTERS, str(name)) if kind != "Cluster" and name else None


def show_why(kind: str, body: Object, events: Sequence[Any], waits: Sequence[str]) -> None:
    """Print conditions, Events and what the object waits for."""
    print_table(
        ("condition", "status", "reason", "since", "message"),
        [
            (c.get("type"), c.get("status"), c.get("reason"), c.get("lastTransitionTime"), c.get("message"))
            for c in health.ordered_conditions(body)
        ],
        title=f"{kind} {body['metadata']['name']}",
    )
    if events:
        print()
        print_table(
            ("last seen", "count", "type", "about", "reason", "message"),
            [
                (health.event_time(e), e.get("count") or 1, e.get("type"), (e.get("involvedObject") or {}).get("name"),
                 e.get("reason"), e.get("message"))
                for e in events
            ],
        )  # fmt: skip
    print()
    print("waits for: " + ("\n           ".join(waits) if waits else "nothing"))


@app.command()
def restart(
    broker: Annotated[str, typer.Argument(help="Id of a broker, or `all`.")],
    cluster: ClusterName = "", namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Restart a broker, or all one by one, when it is safe: all others serve and all replicas are in sync.

    Examples:

    - `kubectl penstock restart 1`
    - `kubectl penstock restart all --cluster penstock`
    """

    async def request(reader: ResourceReader, body: Object) -> str:
        number = None if broker == "all" else changes.broker_number(broker, body)
        pods: list[Object] = []
        if number is not None:
            label = f"{names.CLUSTER_LABEL}={body['metadata']['name']}"
            pods = await reader.list_objects(PODS, query={"labelSelector": label})
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await reader.annotate(CLUSTERS, body, changes.restart_annotations(body, pods, number, at))
        return "all brokers restart one by one" if number is None else f"broker {number} restarts when it is safe"

    run_change(KubeOptions(kubeconfig, context, namespace), cluster, request)


@app.command()
def drain(
    broker: Annotated[str, typer.Argument(help="Id of a broker.")],
    undo: Annotated[bool, typer.Option("--undo", help="End the drain; the broker gets replicas again.")] = False,
    cluster: ClusterName = "", namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Move all replicas away from a broker, for example before its volume is replaced. The broker keeps running.

    Examples:

    - `kubectl penstock drain 2`, then `kubectl penstock top` until its state is Removable
    - `kubectl penstock drain 2 --undo`
    """

    async def request(reader: ResourceReader, body: Object) -> str:
        number = changes.broker_number(broker, body)
        await reader.annotate(CLUSTERS, body, changes.drain_annotations(body, number, is_ended=undo))
        return f"the drain of broker {number} ends" if undo else f"broker {number} is drained"

    run_change(KubeOptions(kubeconfig, context, namespace), cluster, request)


@app.command()
def rebalance(
    approve: Annotated[bool, typer.Option("--approve", help="Approve the plan that `status.rebalance` shows.")] = False,
    cluster: ClusterName = "", namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Request a plan of replica moves, or approve the one that is shown.

    Examples:

    - `kubectl penstock rebalance`, then `kubectl penstock why cluster penstock`
    - `kubectl penstock rebalance --approve`
    """

    async def request(reader: ResourceReader, body: Object) -> str:
        annotations = changes.approval_annotations(body) if approve else {names.REBALANCE: "plan"}
        await reader.annotate(CLUSTERS, body, annotations)
        return f"plan {annotations[names.REBALANCE]} was approved" if approve else "a plan was requested"

    run_change(KubeOptions(kubeconfig, context, namespace), cluster, request)


@app.command()
def hibernate(
    cluster: ClusterName = "", namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Stop all pods of a Cluster and keep its data: see `kubectl penstock wake`."""
    set_annotation(KubeOptions(kubeconfig, context, namespace), cluster, "true", "all pods stop")


@app.command()
def wake(
    cluster: ClusterName = "", namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Start a hibernated Cluster."""
    set_annotation(KubeOptions(kubeconfig, context, namespace), cluster, None, "the pods start")


def set_annotation(options: KubeOptions, cluster: str, value: str | None, message: str) -> None:
    """Set or remove the annotation of hibernation."""

    async def request(reader: ResourceReader, body: Object) -> str:
        await reader.annotate(CLUSTERS, body, {names.HIBERNATE: value})
        return message

    run_change(options, cluster, request)


@app.command()
def reset(
    group: Annotated[str, typer.Argument(help="Name of the ConsumerGroup object.")],
    to: Annotated[str, typer.Option(help="earliest, latest, an offset, or a time such as 2026-11-21T08:00:00Z.")],
    topic: Annotated[list[str] | None, typer.Option(help="Topic to reset, repeatable (default: all).")] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Partition to reset, repeatable (default: all).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan in the status.")] = False,
    namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = "",
) -> None:  # fmt: skip
    """Reset the offsets of a group. It happens once, as soon as the group has no members.

    Examples:

    - `kubectl penstock reset billing --to earliest --dry-run`
    - `kubectl penstock reset billing --to 2026-11-21T08:00:00Z --topic orders`
    """

    async def query(reader: ResourceReader) -> None:
        if await reader.get(CONSUMER_GROUPS, group) is None:
            fail(f'ConsumerGroup "{group}" does not exist in namespace "{reader.namespace}"; set --namespace')
        reset_id = f"kubectl-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        patch = changes.reset_patch(reset_id, to, topic or (), partition or (), dry_run=dry_run)
        await reader.patch(CONSUMER_GROUPS, group, patch)
        print(f"reset {reset_id} was requested; see `kubectl penstock why group {group}`")

    run(KubeOptions(kubeconfig, context, namespace), query)


def run_change(
    options: KubeOptions, cluster: str, request: Callable[[ResourceReader, Object], Coroutine[Any, Any, str]]
) -> None:
    """Run a change of a Cluster, and print its message."""

    async def query(reader: ResourceReader) -> None:
        body = changes.choose_cluster(await reader.list_objects(CLUSTERS), cluster, reader.namespace)
        message, name = await request(reader, body), body["metadata"]["name"]
        print(f"Cluster {name}: {message}; see `kubectl penstock why cluster {name}`")

    run(options, query)


def run(options: KubeOptions, query: Callable[[ResourceReader], Coroutine[Any, Any, None]]) -> None:
    """Run a command with a connection. Errors end the process with a message."""

    async def connected() -> None:
        reader = connect(options)
        try:
            await query(reader)
        finally:
            reader.close()

    try:
        asyncio.run(connected())
    except NoAccess as error:
        fail(str(error), EXIT_NO_ACCESS)
    except changes.InvalidRequest as error:
        fail(str(error))
    except KubeError as error:
        hint = "; the object has changed meanwhile, run the command again" if error.status == 409 else ""
        fail(f"{error}{hint}", EXIT_NO_ACCESS if error.status == 0 else EXIT_UNHEALTHY)


def fail(message: str, code: int = EXIT_UNHEALTHY) -> NoReturn:
    """End the process with a message on standard error."""
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(code)


def main() -> None:
    """Entry point of `kubectl-penstock`."""
    app(prog_name="kubectl penstock")
