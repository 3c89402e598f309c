"""Command line of the operator: `penstock-operator run` builds all components and runs them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import signal
import socket
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import typer
from kubernetes.config import ConfigException

from penstock.runtime import assertions
from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.logging import LEVELS, configure, get_logger
from penstock.runtime.tasks import spawn
from penstock.runtime.unhandled_errors import UnhandledErrors
from penstock_operator import __version__
from penstock_operator.brokers.connections import OVERRIDE, BrokerConnections, parse_override
from penstock_operator.brokers.etcd_client import EtcdClient
from penstock_operator.brokers.tls_prober import TlsProber
from penstock_operator.clusters.controller import ClusterController
from penstock_operator.engine.assembly import (
    ControllerSet,
    OperatorIdentity,
    OperatorRuntime,
    build_operator,
    create_runtime,
)
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.lease import ATTEMPT_TIMEOUT_S
from penstock_operator.engine.namespace_access import readable_namespaces, wait_until_readable
from penstock_operator.engine.watching import quiet_kopf
from penstock_operator.groups.controller import GroupController
from penstock_operator.groups.discovery import MAX_DISCOVERED, Discovery
from penstock_operator.groups.pacing import StatusPacing
from penstock_operator.groups.replays import GroupReplays
from penstock_operator.groups.views import GroupViews
from penstock_operator.kube.client import KubeClient
from penstock_operator.kube.events import EventRecorder
from penstock_operator.kube.http import Requests, configuration
from penstock_operator.ports.kube import CLUSTERS, SERVICES, Kube, KubeError
from penstock_operator.topics.controller import TopicController
from penstock_operator.users.controller import UserController

LEASE_NAME = "penstock-operator"
EXIT_FAILED = 1
EXIT_NO_CLUSTER = 3

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
log = get_logger("operator")


@app.callback()
def about() -> None:
    """Kubernetes operator for Penstock: reconciles Cluster, Topic, ConsumerGroup and User objects."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def run(
    namespaces: Annotated[
        str,
        typer.Option(
            envvar="WATCH_NAMESPACES",
            help="Namespaces to watch, comma-separated. Empty: all namespaces, which requires a ClusterRole.",
        ),
    ] = "",
    image: Annotated[
        str, typer.Option(envvar="BROKER_IMAGE", help="Default image of the brokers, for Clusters without `image`.")
    ] = "",
    operator_image: Annotated[
        str,
        typer.Option(
            envvar="OPERATOR_IMAGE", help="Image of this operator, for pods that take and restore snapshots of etcd."
        ),
    ] = "",
    pod_name: Annotated[str, typer.Option(envvar="POD_NAME", help="Name of this pod, used as Lease identity.")] = "",
    pod_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="Namespace of this pod and of the Lease.")
    ] = "default",
    lease_name: Annotated[
        str, typer.Option(envvar="LEASE_NAME", help="Name of the Lease for leader election between replicas.")
    ] = LEASE_NAME,
    host: Annotated[str, typer.Option(help="Listen address of the metrics and health server.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[
        int,
        typer.Option(envvar="HEALTH_PORT", min=0, max=65535, help="Port of /metrics and /health; 0: any free port."),
    ] = 8081,
    max_discovered_groups: Annotated[
        int,
        typer.Option(
            envvar="MAX_DISCOVERED_GROUPS",
            min=0,
            help="Maximum number of ConsumerGroup objects to create per Cluster for discovered groups; 0: none.",
        ),
    ] = MAX_DISCOVERED,
    log_level: Annotated[
        str, typer.Option(envvar="LOG_LEVEL", help="Log level: debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run the operator until SIGTERM. With several replicas, one is the leader; another one takes over within 20
    seconds.

    The API server is configured by the pod's service account, or by KUBECONFIG outside a cluster.

    Exit codes: 0 stopped by a signal, 1 failed (restart the process), 2 invalid usage, 3 no API server configured.
    """
    if not assertions.are_enabled():
        typer.echo(f"penstock-operator: {assertions.DISABLED}", err=True)
        raise typer.Exit(2)
    if log_level.lower() not in LEVELS:
        raise typer.BadParameter(f'"{log_level}": choose one of {", ".join(LEVELS)}', param_hint="--log-level")
    try:
        parse_override(os.environ.get(OVERRIDE, ""))
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=OVERRIDE) from None
    configure(log_level.lower(), "json")
    quiet_kopf()
    identity = OperatorIdentity(
        namespaces=tuple(sorted({name.strip() for name in namespaces.split(",") if name.strip()})),
        identity=f"{pod_name or socket.gethostname()}_{secrets.token_hex(4)}",
        lease_namespace=pod_namespace,
        lease_name=lease_name,
    )
    options = OperatorOptions(
        image=image, operator_image=operator_image, max_discovered_groups=max_discovered_groups, host=host, port=port
    )
    try:
        sys.exit(asyncio.run(operate(identity, options)))
    except ConfigException as error:
        log.error("no API server is configured: run in a pod with a service account, or set KUBECONFIG", why=str(error))
        sys.exit(EXIT_NO_CLUSTER)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Command line options other than the identity of the process."""

    image: str
    operator_image: str
    max_discovered_groups: int
    host: str
    port: int


async def operate(identity: OperatorIdentity, options: OperatorOptions) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    errors = UnhandledErrors()
    errors.install(loop)
    clock = SystemClock()
    clients: list[Requests] = []
    runtime = create_runtime(clock, lambda freshness: _connect(clock, identity.identity, freshness, clients))
    runtime.metrics.watch_unhandled_errors(lambda: errors.count)
    connections = BrokerConnections(
        partial(runtime.cache.get, CLUSTERS),
        partial(runtime.cache.get, SERVICES),
        override=os.environ.get(OVERRIDE, ""),
    )
    reached = replace(identity, namespaces=await readable_namespaces(runtime.kube, identity.namespaces))
    operator = build_operator(reached, runtime, build_controllers(runtime, connections, options))
    log.info("starting", version=__version__, identity=identity.identity, namespaces=reached.namespaces or "all")
    left_out = [name for name in identity.namespaces if name not in reached.namespaces]
    watcher = spawn(_stop_when_back(runtime.kube, left_out, stop), "namespaces") if left_out else None
    try:
        await operator.run(stop, options.host, options.port)
    except Exception as error:
        log.exception("operator failed", why=f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    finally:
        if watcher is not None:
            watcher.cancel()
        await connections.close()
        for requests in clients:
            requests.close()
    log.info("stopped")
    return 0


async def _stop_when_back(kube: Kube, left_out: list[str], stop: asyncio.Event) -> None:
    """Stop the process when a left-out namespace becomes readable; Kubernetes restarts it with all namespaces."""
    log.info("namespace is readable again; restarting", namespace=await wait_until_readable(kube, left_out))
    stop.set()


def build_controllers(
    runtime: OperatorRuntime, connections: BrokerConnections, options: OperatorOptions
) -> ControllerSet:
    """Return the controllers of all kinds and their background tasks."""
    kube, cache, queue, clock = runtime.kube, runtime.cache, runtime.queue, runtime.clock
    views = GroupViews(cache)
    pacing = StatusPacing(clock, random.random)
    topics = TopicController(kube, cache, connections, queue)
    clusters = ClusterController(
        kube, cache, connections, queue, image=options.image, operator_image=options.operator_image,
        prober=TlsProber(), store=EtcdClient(),
    )  # fmt: skip
    replays = GroupReplays(connections, queue)
    groups = GroupController(kube, cache, connections, clock, views, pacing, replays)
    users = UserController(kube, cache, connections, queue)
    discovery = Discovery(kube, cache, connections, queue, clock, views, options.max_discovered_groups)
    return ControllerSet(
        controllers={"Cluster": clusters, "Topic": topics, "ConsumerGroup": groups, "User": users},
        background={"topics' health": topics.watch, "groups": discovery.run, "replays": replays.run},
    )


def _connect(clock: Clock, identity: str, freshness: Freshness, clients: list[Requests]) -> tuple[Kube, Kube]:
    configured = configuration()
    requests, for_lease = Requests(configured), Requests(configured, timeout_s=ATTEMPT_TIMEOUT_S, threads=2)
    clients.extend((requests, for_lease))
    events = EventRecorder(requests, clock, identity, _event_failed)
    return KubeClient(requests, events, freshness.written), KubeClient(for_lease, events)


def _event_failed(error: KubeError) -> None:
    log.warning("failed to write an Event", why=str(error))


def main() -> None:
    """Entry point of the `penstock-operator` command."""
    app()


if __name__ == "__main__":
    main()
