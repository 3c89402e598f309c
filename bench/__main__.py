"""The command line: `python -m bench SUITE`, `bench all`, `security`, `cluster`, `spark`, and `bench report`."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from bench import report as report_module
from bench import tables
from bench.client import ClientFailed
from bench.peers.broker import Peer
from bench.peers.kafka import NEWEST, Kafka, KafkaCluster, KafkaUnavailable
from bench.peers.mock import Mock
from bench.peers.penstock import CLUSTER_COMMAND, DEFAULT_COMMAND, Penstock, PenstockCluster
from bench.peers.service import BrokerFailed, Contender
from bench.results import RESULTS_DIR, Results, read_all
from bench.session import Options, Session, new_work_dir
from bench.spark_peer import PeerUnavailable
from bench.suites import (
    catch_up,
    cluster_partitions,
    codecs,
    commits,
    connections,
    delayed,
    failover,
    footprint,
    latency,
    mixed,
    partitions,
    queues,
    rebalance,
    restart,
    rf3,
    security,
    share,
    spark,
    surge,
    throughput,
    wide,
)

LOG_WIDTH = 160
Suite = Callable[[Session], None]
ONE_BROKER: dict[str, tuple[Suite, float]] = {  # suites, with their approximate duration in minutes
    "produce": (throughput.produce, 4),
    "consume": (throughput.consume, 4),
    "catch-up": (catch_up.run, 15),
    "mixed": (mixed.run, 8),
    "durable": (throughput.durable, 2),
    "small-batches": (throughput.small_batches, 5),
    "codecs": (codecs.run, 12),
    "roundtrip": (latency.roundtrip, 1.5),
    "latency": (latency.latency, 6),
    "startup": (footprint.startup, 2),
    "memory": (footprint.memory, 2),
    "connections": (connections.run, 2),
    "partitions": (partitions.run, 8),
    "restart": (restart.run, 15),
    "surge": (surge.run, 1),
    "commits": (commits.run, 1),
    "share": (share.run, 12),
    "queues": (queues.run, 45),
    "rebalance": (rebalance.run, 12),
    "delayed": (delayed.run, 8),
}

SECURITY: dict[str, tuple[Suite, float]] = {
    "tls": (security.tls, 4),
    "handshakes": (security.handshakes, 3),
    "acls": (security.acls, 3),
    "noisy": (security.noisy, 3),
}
THREE_BROKERS: dict[str, tuple[Suite, float]] = {
    "rf3": (rf3.throughput, 5),
    "rf3-latency": (rf3.latency, 5),
    "cluster-mixed": (mixed.on_cluster, 8),
    "failover": (failover.run, 7),
    "cluster-partitions": (cluster_partitions.run, 6),
    "wide": (wide.run, 40),
    "cluster-commits": (commits.on_cluster, 2),
    "cluster-queues": (queues.on_clusters, 50),
}
SUITES = {**ONE_BROKER, **SECURITY, **THREE_BROKERS, **spark.SUITES}
GROUPS = {"all": ONE_BROKER, "security": SECURITY, "cluster": THREE_BROKERS, "spark": spark.SUITES}

SHARING = (  # one pair of brokers or clusters for all suites of a kind
    *("produce", "consume", "catch-up", "mixed", "durable", "small-batches", "codecs", "roundtrip", "latency"),
    *("rf3", "rf3-latency", "cluster-mixed"),
)

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(-1 if part.strip() == "all" else int(part) for part in text.split(","))


@app.command(
    "run",
    help="Runs the named suites, or those of a group: all, security, cluster, spark.",
    hidden=True,
)
def run_suites(
    names: Annotated[
        list[str], typer.Argument(help="Suites: " + ", ".join(SUITES) + "; groups: all, security, cluster, spark.")
    ],
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, where not each suite's own number.")] = None,
    sizes: Annotated[str, typer.Option(help="Message sizes in bytes.")] = "100,1024,10240",
    acks: Annotated[str, typer.Option(help="acks of the produce suite: 1, all.")] = "1,all",
    megabytes: Annotated[float, typer.Option(min=0.1, help="Volume of a timed section.")] = 40.0,
    quick: Annotated[bool, typer.Option(help="A smoke run: two rounds of next to nothing.")] = False,
    no_kafka: Annotated[bool, typer.Option("--no-kafka", help="Measure without Kafka.")] = False,
    null: Annotated[bool, typer.Option("--null", help="Kafka in both columns: the noise of the bench.")] = False,
    restart: Annotated[
        int | None,
        typer.Option(min=1, help="Suite delayed: only the restarts, with this many waiting records."),
    ] = None,
    penstock: Annotated[str, typer.Option(help="Command that starts the broker under test.")] = DEFAULT_COMMAND,
    penstock_node: Annotated[str, typer.Option(help="And a broker of the cluster under test.")] = CLUSTER_COMMAND,
) -> None:
    """Run suites one after the other. Return exit code 1 if a suite could not be measured."""
    chosen = [suite for name in names for suite in GROUPS.get(name, [name])]
    unknown = [name for name in chosen if name not in SUITES]
    if unknown:
        raise typer.BadParameter(
            f"unknown suite {unknown[0]}; there are {', '.join(SUITES)}, and all, security, cluster and spark"
        )
    options = Options(rounds, megabytes, _numbers(sizes), _numbers(acks), quick, null, restart)
    console = Console() if sys.stdout.isatty() else Console(width=LOG_WIDTH)
    try:
        subject: Peer = Kafka("penstock", version=NEWEST) if null else Penstock(penstock)
        kafka = None if no_kafka else Kafka(version=NEWEST)
        subject_cluster: Contender = (
            KafkaCluster("penstock", version=NEWEST) if null else PenstockCluster(penstock_node)
        )
        kafka_cluster = None if no_kafka else KafkaCluster(version=NEWEST)
    except KafkaUnavailable as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    work_dir = new_work_dir()
    session = Session(options, console, subject, kafka, Mock(), subject_cluster, kafka_cluster, work_dir)
    os.sched_setaffinity(0, {session.cores.client})
    try:
        failed = _run(session, chosen)
    finally:
        session.end_standing_brokers()
        shutil.rmtree(work_dir, ignore_errors=True)
    raise typer.Exit(1 if failed else 0)


def _run(session: Session, names: list[str]) -> bool:
    console = session.console
    console.print(f"plan: {', '.join(names)}; about {sum(SUITES[name][1] for name in names):.0f} min in full rounds")
    if session.cores.shared:
        console.print("client and broker share the only core: throughput says little here", style="yellow")
    measured: dict[str, Results] = {}
    failed = False
    for name in names:
        started = time.monotonic()
        if name not in SHARING:
            session.end_standing_brokers()
        try:
            SUITES[name][0](session)
        except (
            BrokerFailed,
            ClientFailed,
            KafkaUnavailable,
            PeerUnavailable,
            RuntimeError,
            TimeoutError,
            OSError,
        ) as error:
            console.print(f"{name} failed: {error}", style="red", markup=False)
            failed = True
            session.end_standing_brokers()
        if session.recorder is not None and session.recorder.results.header.suite == name:
            measured[name] = session.recorder.results
            tables.show_measured(console, measured[name])
        console.print(f"{name} took {time.monotonic() - started:.0f} s")
    tables.show_verdicts(console, measured)
    return failed


@app.command()
def report(
    check: Annotated[bool, typer.Option(help="Exit code 1 where a required line falls short.")] = False,
) -> None:
    """Render bench/RESULTS.md from the newest results of each suite."""
    measured = read_all(RESULTS_DIR)
    path, all_good = report_module.write(measured, read_all(RESULTS_DIR / "null"))
    Console().print(f"wrote {path}")
    if check and not all_good:
        raise typer.Exit(1)


def _terminated(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    if len(sys.argv) > 1 and (sys.argv[1] in (*SUITES, *GROUPS)):
        sys.argv.insert(1, "run")
    app()
