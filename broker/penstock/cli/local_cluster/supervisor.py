"""Starts a local cluster's processes, tells when all serve and when one ends, ends them in order. Made by `command`.

etcd comes first and goes last. A process that ends is reported; with `restart` it is started again. The others go on
either way: that they do is what a local cluster is there to show.
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
from penstock.cli.local_cluster.processes import Child, how_it_ended
from penstock.config.options import UpOptions

STOP_S = 60.0
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
"""Before a process is started again: twice as long each time, until it has run for longer than that."""
PORT_TRIES = 5
"""Ports are chosen before etcd listens: somebody else may have one by then."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY = "ready "

CommandOf = Callable[[UpOptions], list[str]]


class SupervisedProcess:
    """A process of the cluster and how it does. `address` and `http` are what a broker said when it was ready."""

    def __init__(self, child: Child, cure: str) -> None:
        self.child, self.cure = child, cure
        self.ready = asyncio.Event()
        self.address = self.http = ""
        self.exit_code: int | None = None


class ClusterSupervisor:
    """One run of a local cluster. `command_of` makes the command of a broker from its options.

    What has not ended `stop_s` after it was asked to is killed.
    """

    def __init__(self, cluster: LocalCluster, command_of: CommandOf = plan.command, stop_s: float = STOP_S) -> None:
        self.cluster, self.command_of, self.stop_s = cluster, command_of, stop_s
        names = [f"broker-{number}" for number in cluster.numbers]
        self.console = Console([*names, *([] if cluster.options.etcd else ["etcd"])])
        self.endpoints = list(cluster.options.etcd)
        self.etcd: SupervisedProcess | None = None
        self.brokers: list[SupervisedProcess] = []
        self.stop = asyncio.Event()
        self.is_stopping = False
        self.failed = ""
        """Why the cluster could not start, or could not go on."""
        self._watches: list[asyncio.Task[None]] = []

    async def run(self) -> ExitCode:
        """Runs until a signal. Raises CommandError where the cluster did not start, or all its brokers ended."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.told_to_stop)
        try:
            if await self.until_stopped(self.start()):
                print(self.ready_line(), flush=True)
                await self.stop.wait()
            unclean = await self.end()
        finally:
            self.kill()
            for number in SIGNALS:
                loop.remove_signal_handler(number)
        if self.failed:
            raise CommandError(self.failed)
        return ExitCode.FAILED if unclean else ExitCode.OK

    def told_to_stop(self) -> None:
        """The first time in good order, the second time at once."""
        if self.stop.is_set():
            self.console.say("killing what is left")
            self.kill()
        self.stop.set()

    async def until_stopped(self, work: Awaitable[None]) -> bool:
        """Whether `work` was done before the cluster was told to stop, or could not start."""
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

    # --- starting

    async def start(self) -> None:
        """Returns when all serve."""
        if not self.endpoints:
            await self.start_etcd()
        log_format = self.cluster.options.log_format
        if log_format == "auto":
            log_format = "text" if self.console.is_terminal else "json"
        for number in self.cluster.numbers:
            member = self.broker(number, log_format)
            self.brokers.append(member)
            await self.watched(member)
        for member in self.brokers:
            await member.ready.wait()

    async def start_etcd(self) -> None:
        program, warning = etcd.locate()
        if warning is not None:
            self.console.say(f"warning: {warning}")
        self.cluster.etcd_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for tries_left in reversed(range(PORT_TRIES)):
            member, client_port, heard = await self.begin_etcd(program)
            if await etcd.serves(member.child, client_port):
                member.ready.set()
                break
            if not heard.was_taken or not tries_left:
                break
            self.console.say("somebody took a port of etcd's before it could: it is started again with others")
        self._watches.append(asyncio.create_task(self.watch(member)))
        await member.ready.wait()

    async def begin_etcd(self, program: str) -> tuple[SupervisedProcess, int, etcd.Listening]:
        """(etcd, its port for clients, what hears whether it could have its ports)"""
        client_port, peer_port = etcd.choose_ports(wants_usual=self.cluster.options.port != 0)
        command = etcd.command(program, self.cluster.etcd_directory, client_port, peer_port)
        heard = etcd.Listening(self.line_writer("etcd"))
        # It ends at once when asked to, and may lose data when it is killed.
        child = Child("etcd", command, heard, heard, etcd.environment(), orphan_signal=signal.SIGTERM)
        self.etcd = member = SupervisedProcess(child, "until it is back, nothing that is kept in it can change")
        self.endpoints = [f"http://{etcd.HOST}:{client_port}"]
        await self.begin(member)
        return member, client_port, heard

    def broker(self, number: int, log_format: str) -> SupervisedProcess:
        options = self.cluster.broker(number, self.endpoints, log_format)
        name = f"broker-{number}"
        write = self.line_writer(name)

        def on_output(line: str) -> None:
            if line.startswith(READY):
                self.heard_ready(member, line, options)
            write(line)

        child = Child(name, self.command_of(options), on_output, write, os.environ)
        member = SupervisedProcess(child, cure=f"start it again with: {plan.by_hand(options)}")
        return member

    def line_writer(self, name: str) -> Callable[[str], None]:
        return lambda line: self.console.write(name, line)

    def heard_ready(self, member: SupervisedProcess, line: str, options: UpOptions) -> None:
        words = dict(word.partition("=")[::2] for word in line.split()[1:])
        member.address, member.http = words.get("kafka", ""), words.get("http", "off")
        options = plan.settled(options, member.address, member.http)
        member.child.command = self.command_of(options)
        member.cure = f"start it again with: {plan.by_hand(options)}"
        member.ready.set()

    def ready_line(self) -> str:
        """As one broker has it, the first one's; what the others add stands behind."""
        first = self.brokers[0]
        bootstrap = ",".join(member.address for member in self.brokers)
        return f"ready kafka={first.address} http={first.http} bootstrap={bootstrap} etcd={','.join(self.endpoints)}"

    # --- watching

    async def begin(self, member: SupervisedProcess) -> None:
        try:
            await member.child.start()
        except OSError as e:
            raise CommandError(f"{member.child.name} cannot be started: {e}") from e

    async def watched(self, member: SupervisedProcess) -> None:
        await self.begin(member)
        self._watches.append(asyncio.create_task(self.watch(member)))

    async def watch(self, member: SupervisedProcess) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            began_s = loop.time()
            member.exit_code = code = await member.child.wait()
            if self.is_stopping:
                return
            if not member.ready.is_set():
                self.fail(f"{member.child.name} did not start: it {how_it_ended(code)}; its last lines say why")
                return
            self.report(member, code)
            if not self.cluster.restart:
                self.look_who_is_left()
                return
            pause_s = FIRST_PAUSE_S if loop.time() - began_s > LONGEST_PAUSE_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            if self.is_stopping:
                return
            try:
                await member.child.start()
            except OSError as e:
                self.console.say(f"{member.child.name} cannot be started again: {e}")
                self.look_who_is_left()
                return
            member.exit_code = None

    def report(self, member: SupervisedProcess, code: int) -> None:
        what = f"{member.child.name} (process {member.child.pid}) {how_it_ended(code)}"
        self.console.say(f"{what}: {'it is started again' if self.cluster.restart else member.cure}")

    def look_who_is_left(self) -> None:
        if not any(member.child.is_running for member in self.brokers):
            self.fail("all brokers have ended")

    def fail(self, reason: str) -> None:
        self.failed = self.failed or reason
        self.stop.set()

    # --- ending

    async def end(self) -> bool:
        """Ends the brokers, then etcd; whether one of them did not end in good order."""
        self.is_stopping = True
        running = [member for member in self.brokers if member.child.is_running]
        if running:
            self.console.say("stopping")
        await asyncio.gather(*(self.end_one(member) for member in running))
        if self.etcd is not None and self.etcd.child.is_running:
            await self.end_one(self.etcd)
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        return any(member.exit_code != 0 for member in running)

    async def end_one(self, member: SupervisedProcess) -> None:
        member.child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.stop_s):
                member.exit_code = await member.child.wait()
        except TimeoutError:
            self.console.say(f"{member.child.name} has not ended after {self.stop_s:.0f} s, and is killed")
            member.child.send(signal.SIGKILL)
            member.exit_code = await member.child.wait()

    def kill(self) -> None:
        """Ends at once what is left; nothing where all has ended."""
        for member in [*self.brokers, *([self.etcd] if self.etcd is not None else [])]:
            member.child.send(signal.SIGKILL)
