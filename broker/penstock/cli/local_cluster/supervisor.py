"""Supervises a local cluster: starts its processes, reports when all serve and when one exits, stops them in order.

etcd starts first and stops last. With `restart`, a process that exits is restarted. The other processes keep running in
any case, as a local cluster exists to demonstrate that. Created by `command`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from penstock.cli.common import CommandError, ExitCode
from penstock.cli.local_cluster import etcd, plan
from penstock.cli.local_cluster.console import Console
from penstock.cli.local_cluster.plan import LocalCluster
from penstock.cli.local_cluster.processes import ChildProcess, exit_text
from penstock.config.options import UpOptions

STOP_TIMEOUT_S = 60.0
MIN_RESTART_DELAY_S = 1.0
MAX_RESTART_DELAY_S = 30.0
"""Delay before a restart. It doubles each time, and is reset once the process has run for longer than the maximum."""
MAX_PORT_ATTEMPTS = 5
"""Attempts to start etcd: another process may bind a chosen port before etcd does."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY = "ready "

BrokerCommand = Callable[[UpOptions], list[str]]


class SupervisedProcess:
    """A process and its state. `address` and `http` are the endpoints from a broker's ready line."""

    def __init__(self, child: ChildProcess, hint: str) -> None:
        self.child, self.hint = child, hint
        self.ready = asyncio.Event()
        self.address = self.http = ""
        self.exit_code: int | None = None


class ClusterSupervisor:
    """One run of a local cluster. `broker_command` returns a broker's command from its options.

    Processes are killed if they have not exited `stop_s` seconds after SIGTERM.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        broker_command: BrokerCommand = plan.broker_command,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        self.cluster, self.broker_command, self.stop_timeout_s = cluster, broker_command, stop_timeout_s
        names = [f"broker-{number}" for number in cluster.broker_ids]
        self.console = Console([*names, *([] if cluster.options.etcd else ["etcd"])])
        self.endpoints = list(cluster.options.etcd)
        self.etcd: SupervisedProcess | None = None
        self.brokers: list[SupervisedProcess] = []
        self.stop = asyncio.Event()
        self.is_stopping = False
        self.failure = ""
        """Why the cluster could not start or continue; empty if it has not failed."""
        self._watches: list[asyncio.Task[None]] = []

    async def run(self) -> ExitCode:
        """Run until a signal. Raises CommandError if the cluster did not start or all brokers exited."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.on_signal)
        try:
            if await self.run_unless_stopped(self.start()):
                print(self.ready_line(), flush=True)
                await self.stop.wait()
            is_unclean = await self.stop_all()
        finally:
            self.kill()
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        if self.failure:
            raise CommandError(self.failure)
        return ExitCode.FAILED if is_unclean else ExitCode.OK

    def on_signal(self) -> None:
        """Stop cleanly on the first signal, and kill all processes on the second."""
        if self.stop.is_set():
            self.console.log("killing remaining processes")
            self.kill()
        self.stop.set()

    async def run_unless_stopped(self, work: Awaitable[None]) -> bool:
        """Return whether `work` completed before the cluster was stopped or failed."""
        working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done() and not self.stop.is_set()
        finally:
            working.cancel()
            stopped.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    async def start(self) -> None:
        """Start all processes and wait until all brokers are ready."""
        if not self.endpoints:
            await self.start_etcd()
        log_format = self.cluster.options.log_format
        if log_format == "auto":
            log_format = "text" if self.console.is_terminal else "json"
        for number in self.cluster.broker_ids:
            member = self.create_broker(number, log_format)
            self.brokers.append(member)
            await self.spawn_watched(member)
        for member in self.brokers:
            await member.ready.wait()

    async def start_etcd(self) -> None:
        """Start etcd and wait until it serves requests, with other ports if one is in use."""
        program, warning = etcd.locate()
        if warning is not None:
            self.console.log(f"warning: {warning}")
        self.cluster.etcd_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for tries_left in reversed(range(MAX_PORT_ATTEMPTS)):
            member, client_port, output = await self.spawn_etcd(program)
            if await etcd.wait_until_serving(member.child, client_port):
                member.ready.set()
                break
            if not output.port_conflict or not tries_left:
                break
            self.console.log("a port of etcd is in use by another process; restarting etcd with other ports")
        self._watches.append(asyncio.create_task(self.watch(member)))
        await member.ready.wait()

    async def spawn_etcd(self, program: str) -> tuple[SupervisedProcess, int, etcd.EtcdOutput]:
        """Start etcd once. Returns (process, client port, its output)."""
        client_port, peer_port = etcd.choose_ports(use_defaults=self.cluster.options.port != 0)
        command = etcd.command(program, self.cluster.etcd_directory, client_port, peer_port)
        output = etcd.EtcdOutput(self.line_writer("etcd"))
        # SIGTERM stops etcd immediately; SIGKILL may lose data.
        child = ChildProcess("etcd", command, output, output, etcd.environment(), orphan_signal=signal.SIGTERM)
        self.etcd = member = SupervisedProcess(child, "cluster metadata cannot change until it is running again")
        self.endpoints = [f"http://{etcd.HOST}:{client_port}"]
        await self.spawn(member)
        return member, client_port, output

    def create_broker(self, number: int, log_format: str) -> SupervisedProcess:
        """Return the process of one broker, not started yet."""
        options = self.cluster.broker_options(number, self.endpoints, log_format)
        name = f"broker-{number}"
        write = self.line_writer(name)

        def on_output(line: str) -> None:
            if line.startswith(READY):
                self.on_ready(member, line, options)
            write(line)

        child = ChildProcess(name, self.broker_command(options), on_output, write, os.environ)
        member = SupervisedProcess(child, hint=f"restart it with: {plan.manual_command(options)}")
        return member

    def line_writer(self, name: str) -> Callable[[str], None]:
        """Return a function that prints lines with the process name."""
        return lambda line: self.console.write(name, line)

    def on_ready(self, member: SupervisedProcess, line: str, options: UpOptions) -> None:
        """Record the endpoints from the broker's ready line, and keep its ports for a restart."""
        words = dict(word.partition("=")[::2] for word in line.split()[1:])
        member.address, member.http = words.get("kafka", ""), words.get("http", "off")
        options = plan.with_ports(options, member.address, member.http)
        member.child.command = self.broker_command(options)
        member.hint = f"restart it with: {plan.manual_command(options)}"
        member.ready.set()

    def ready_line(self) -> str:
        """Return the first broker's ready line, with `bootstrap=` and `etcd=` appended."""
        first = self.brokers[0]
        bootstrap = ",".join(member.address for member in self.brokers)
        return f"ready kafka={first.address} http={first.http} bootstrap={bootstrap} etcd={','.join(self.endpoints)}"

    async def spawn(self, member: SupervisedProcess) -> None:
        """Start a process. Raises CommandError."""
        try:
            await member.child.start()
        except OSError as e:
            raise CommandError(f"cannot start {member.child.name}: {e}") from e

    async def spawn_watched(self, member: SupervisedProcess) -> None:
        """Start a process and watch it."""
        await self.spawn(member)
        self._watches.append(asyncio.create_task(self.watch(member)))

    async def watch(self, member: SupervisedProcess) -> None:
        """Report when the process exits, and restart it if the cluster restarts processes."""
        loop = asyncio.get_running_loop()
        delay_s = MIN_RESTART_DELAY_S
        while True:
            started_s = loop.time()
            member.exit_code = code = await member.child.wait()
            if self.is_stopping:
                return
            if not member.ready.is_set():
                self.fail(f"{member.child.name} did not start: it {exit_text(code)}; see its last log lines")
                return
            self.report(member, code)
            if not self.cluster.restart:
                self.fail_if_all_exited()
                return
            delay_s = MIN_RESTART_DELAY_S if loop.time() - started_s > MAX_RESTART_DELAY_S else delay_s
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, MAX_RESTART_DELAY_S)
            if self.is_stopping:
                return
            try:
                await member.child.start()
            except OSError as e:
                self.console.log(f"cannot restart {member.child.name}: {e}")
                self.fail_if_all_exited()
                return
            member.exit_code = None

    def report(self, member: SupervisedProcess, code: int) -> None:
        """Print how a process exited and what happens next."""
        what = f"{member.child.name} (process {member.child.pid}) {exit_text(code)}"
        self.console.log(f"{what}: {'restarting it' if self.cluster.restart else member.hint}")

    def fail_if_all_exited(self) -> None:
        """Fail if no broker is running."""
        if not any(member.child.is_running for member in self.brokers):
            self.fail("all brokers have exited")

    def fail(self, reason: str) -> None:
        """Stop the cluster; the first reason is reported."""
        self.failure = self.failure or reason
        self.stop.set()

    async def stop_all(self) -> bool:
        """Stop the brokers, then etcd. Returns whether one of the brokers did not exit cleanly."""
        self.is_stopping = True
        running = [member for member in self.brokers if member.child.is_running]
        if running:
            self.console.log("stopping")
        await asyncio.gather(*(self.stop_process(member) for member in running))
        if self.etcd is not None and self.etcd.child.is_running:
            await self.stop_process(self.etcd)
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        return any(member.exit_code != 0 for member in running)

    async def stop_process(self, member: SupervisedProcess) -> None:
        """Send SIGTERM, and SIGKILL after the timeout."""
        member.child.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.stop_timeout_s):
                member.exit_code = await member.child.wait()
        except TimeoutError:
            self.console.log(f"{member.child.name} has not exited after {self.stop_timeout_s:.0f} s; killing it")
            member.child.send_signal(signal.SIGKILL)
            member.exit_code = await member.child.wait()

    def kill(self) -> None:
        """Send SIGKILL to all remaining processes."""
        for member in [*self.brokers, *([self.etcd] if self.etcd is not None else [])]:
            member.child.send_signal(signal.SIGKILL)
