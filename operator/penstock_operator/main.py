"""Puts the operator together and runs it: `penstock-operator run`."""

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

from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.logging import LEVELS, configure, get_logger
from penstock_operator import __version__
from penstock_operator.brokers.connections import OVERRIDE, BrokerConnections, parse_override
from penstock_operator.clusters.controller import ClusterController
from penstock_operator.engine.assembly import ControllerSet, OperatorIdentity, OperatorRuntime, assembled, hull
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.lease import ATTEMPT_TIMEOUT_S
from penstock_operator.engine.reach import until_one_is_back, within_reach
from penstock_operator.engine.watching import quiet_kopf
from penstock_operator.groups.controller import GroupController
from penstock_operator.groups.discovery import MAX_DISCOVERED, Discovery
from penstock_operator.groups.pacing import Pacing
from penstock_operator.groups.views import GroupViews
from penstock_operator.kube.client import KubeClient
from penstock_operator.kube.events import Events
from penstock_operator.kube.http import Requests, configuration
from penstock_operator.ports.kube import CLUSTERS, SERVICES, Kube, KubeError
from penstock_operator.topics.controller import TopicController

LEASE_NAME = "penstock-operator"
EXIT_FAILED = 1
EXIT_NO_CLUSTER = 3

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
log = get_logger("operator")


@app.callback()
def about() -> None:
    """Penstock's operator: makes Kubernetes and brokers what Cluster, Topic and ConsumerGroup objects say."""


@app.command()
def version() -> None:
    """Prints the version."""
    typer.echo(__version__)


@app.command()
def run(
    namespaces: Annotated[
        str,
        typer.Option(
            envvar="WATCH_NAMESPACES",
            help="Namespaces to watch, with commas between them. Empty: all of them, which needs a ClusterRole.",
        ),
    ] = "",
    image: Annotated[
        str, typer.Option(envvar="BROKER_IMAGE", help="The brokers' image where a Cluster names none.")
    ] = "",
    pod_name: Annotated[str, typer.Option(envvar="POD_NAME", help="This pod's name: who holds the lease.")] = "",
    pod_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", help="This pod's namespace: where the lease is.")
    ] = "default",
    lease_name: Annotated[
        str, typer.Option(envvar="LEASE_NAME", help="The lease that the replicas of one operator share.")
    ] = LEASE_NAME,
    host: Annotated[str, typer.Option(help="Where metrics and health are served.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[
        int, typer.Option(envvar="HEALTH_PORT", min=0, max=65535, help="Port of /metrics and /health; 0: any.")
    ] = 8081,
    max_discovered_groups: Annotated[
        int,
        typer.Option(
            envvar="MAX_DISCOVERED_GROUPS",
            min=0,
            help="How many consumer groups of each Cluster appear by themselves. 0: none.",
        ),
    ] = MAX_DISCOVERED,
    log_level: Annotated[str, typer.Option(envvar="LOG_LEVEL", help="debug, info, warning or error.")] = "info",
) -> None:
    """Runs until SIGTERM. Several replicas may run: one acts, the others take over within 20 seconds.

    Where the API server is comes from the pod's service account, or from KUBECONFIG outside of a cluster.

    Exit codes: 0 stopped as asked, 1 something failed that starting again may mend, 2 wrong usage, 3 no API server
    is configured.
    """
    if log_level.lower() not in LEVELS:
        raise typer.BadParameter(f"{log_level}: choose one of {', '.join(LEVELS)}", param_hint="--log-level")
    try:
        parse_override(os.environ.get(OVERRIDE, ""))
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=OVERRIDE) from None
    configure(log_level.lower(), "json")
    quiet_kopf()
    who = OperatorIdentity(
        namespaces=tuple(sorted({name.strip() for name in namespaces.split(",") if name.strip()})),
        identity=f"{pod_name or socket.gethostname()}_{secrets.token_hex(4)}",
        lease_namespace=pod_namespace,
        lease_name=lease_name,
    )
    wishes = OperatorOptions(image=image, max_discovered_groups=max_discovered_groups, host=host, port=port)
    try:
        sys.exit(asyncio.run(operate(who, wishes)))
    except ConfigException as error:
        log.error("no API server is configured: run in a pod with a service account, or set KUBECONFIG", why=str(error))
        sys.exit(EXIT_NO_CLUSTER)


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """What a process is started with, beside who it is."""

    image: str
    max_discovered_groups: int
    host: str
    port: int


async def operate(who: OperatorIdentity, wishes: OperatorOptions) -> int:
    """Until a signal. Returns the exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    ends: list[Requests] = []
    made = hull(clock, lambda freshness: _connect(clock, who.identity, freshness, ends))
    connections = BrokerConnections(
        partial(made.copies.get, CLUSTERS),
        partial(made.copies.get, SERVICES),
        override=os.environ.get(OVERRIDE, ""),
    )
    reached = replace(who, namespaces=await within_reach(made.kube, who.namespaces))
    operator = assembled(reached, made, crew(made, connections, wishes))
    log.info("starting", version=__version__, identity=who.identity, namespaces=reached.namespaces or "all")
    left_out = [name for name in who.namespaces if name not in reached.namespaces]
    back = asyncio.create_task(_stop_when_back(made.kube, left_out, stop), name="namespaces") if left_out else None
    try:
        await operator.run(stop, wishes.host, wishes.port)
    except Exception as error:
        log.exception("the operator ends", why=f"{type(error).__name__}: {error}")
        return EXIT_FAILED
    finally:
        if back is not None:
            back.cancel()
        await connections.close()
        for requests in ends:
            requests.close()
    log.info("stopped")
    return 0


async def _stop_when_back(kube: Kube, left_out: list[str], stop: asyncio.Event) -> None:
    """Ends the process, which is started again then, with all that may be watched."""
    log.info("a namespace may be read now: starts again", namespace=await until_one_is_back(kube, left_out))
    stop.set()


def crew(made: OperatorRuntime, connections: BrokerConnections, wishes: OperatorOptions) -> ControllerSet:
    """The controllers of all kinds."""
    kube, copies, queue, clock = made.kube, made.copies, made.queue, made.clock
    views = GroupViews(copies)
    pacing = Pacing(clock, random.random)
    topics = TopicController(kube, copies, connections, queue)
    clusters = ClusterController(kube, copies, connections, queue, image=wishes.image)
    groups = GroupController(kube, copies, connections, clock, views, pacing)
    discovery = Discovery(kube, copies, connections, queue, clock, views, wishes.max_discovered_groups)
    return ControllerSet(
        controllers={"Cluster": clusters, "Topic": topics, "ConsumerGroup": groups},
        background={"topics' health": topics.watch, "groups": discovery.run},
    )


def _connect(clock: Clock, identity: str, freshness: Freshness, ends: list[Requests]) -> tuple[Kube, Kube]:
    where = configuration()
    requests, for_lease = Requests(where), Requests(where, timeout_s=ATTEMPT_TIMEOUT_S, threads=2)
    ends.extend((requests, for_lease))
    events = Events(requests, clock, identity, _event_failed)
    return KubeClient(requests, events, freshness.written), KubeClient(for_lease, events)


def _event_failed(error: KubeError) -> None:
    log.warning("an Event could not be written", why=str(error))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
