"""This broker's membership of its cluster: registration under a lease, candidacy for controller, clean leave.

Created by `clustered`. Implements `replica.membership.BrokerMembership` from before the registration to after its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from penstock.config.broker import BrokerConfig
from penstock.control.broker_reports import BrokerReports, ReportedSettings
from penstock.control.controller.controller import ControllerContext, ControllerTask
from penstock.control.controller.keeper import LogEnds
from penstock.control.controller.probes import Prober
from penstock.control.members import partition_name
from penstock.control.membership import FEATURE_LEVEL, Registration
from penstock.control.restored.restored import RestoreGuard
from penstock.control.topic_removal import TopicCleaner
from penstock.log.log_dir import LogDirectory
from penstock.node.environment import LeaseRenewal, NodeEnvironment
from penstock.runtime.logging import get_logger
from penstock.runtime.tasks import spawn
from penstock.state import keys
from penstock.state.records import BrokerRecord, EndpointRecord
from penstock.state.store import Store, StoreError
from penstock.state.view import BrokerEndpoint, ClusterView
from penstock.state.watcher import Watcher

log = get_logger("penstock.node")

PULSE_S = 0.25
HANDOVER_TIMEOUT_S = 20.0
"""How long a stopping broker waits until other brokers lead its partitions."""
RETRY_S = 1.0


class ClusterMember:
    """A broker's membership. `on_lost` is called with the reason when it has ended without a request of this broker."""

    def __init__(
        self,
        store: Store,
        view: ClusterView,
        watcher: Watcher,
        config: BrokerConfig,
        log_dir: LogDirectory,
        environment: NodeEnvironment,
        restored: RestoreGuard,
        on_lost: Callable[[str], None],
    ) -> None:
        self.store, self.view, self.watcher, self.config = store, view, watcher, config
        self.log_dir, self.environment = log_dir, environment
        self.restored, self.on_lost = restored, on_lost
        self.may_discard = restored.may_discard
        self.registration: Registration | None = None
        self.renewal: LeaseRenewal | None = None
        self.controller: ControllerTask | None = None
        self.ticked_ms = environment.clock.boot_ms()
        self.ticking: asyncio.TimerHandle | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.broker_reports: BrokerReports | None = None
        self.controller_task: asyncio.Task[None] | None = None
        self.is_leaving = False

    # Queries

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before the registration."""
        return -1 if self.registration is None else self.registration.epoch

    def may_serve(self) -> bool:
        """Return whether the lease surely holds and the broker is not frozen."""
        return self.registration is not None and self.registration.may_serve() and self.restored.may_serve()

    # Lifecycle

    async def register(self, endpoints: Sequence[BrokerEndpoint]) -> None:
        """Register, and return when the view has this broker. Raises `StoreError`, also `DuplicateBroker`."""
        config, log_dir, clock = self.config, self.log_dir, self.environment.clock
        settings = ReportedSettings.from_config(config)
        record = BrokerRecord(
            broker_id=config.node_id,
            incarnation=self.environment.new_id(),
            endpoints=[EndpointRecord(listener=e.listener, host=e.host, port=e.port) for e in endpoints],
            rack=settings.rack,
            failure_domain=settings.failure_domain,
            draining=settings.draining,
            registered_ms=clock.wall_ms(),
            directory_id=log_dir.directory_id,
            boot_id=self.environment.boot_id,
            was_unclean=log_dir.was_unclean,
            feature_level=FEATURE_LEVEL,
        )
        damaged = [partition_name(*key) for key in {*log_dir.corrupt, *log_dir.torn_bytes}]
        registration = Registration(self.store, clock, record, config.broker_session_timeout_ms, damaged)
        await registration.register()
        self.registration = registration
        self._tick()
        self.renewal = self.environment.renew(registration, lambda: self.ticked_ms)
        self._spawn(self._watch_loss(registration))
        self._spawn(self._watch_recovery())
        await self.watcher.applied(registration.epoch)
        self.view.subscribe_brokers(self._on_brokers)
        self._on_brokers()
        self.broker_reports = BrokerReports(config, registration.report_settings, registration.lost.is_set)
        self.broker_reports.start(settings)

    def start_controller(self, prober: Prober, log_ends: LogEnds, cleaners: Sequence[TopicCleaner]) -> None:
        """Become a candidate for controller."""
        assert self.registration is not None, "only a member can be a candidate"
        context = ControllerContext(
            self.store,
            self.view,
            self.watcher,
            self.config,
            self.environment.clock,
            self.registration,
            prober,
            log_ends,
            self.environment.new_id,
            cleaners,
        )
        self.controller = ControllerTask(context)
        self.controller_task = spawn(self.controller.run(), "controller")

    def withdraw(self, error: Exception) -> None:
        """Leave the cluster because the log directory has failed, so that other brokers lead."""
        if not self.is_leaving:
            log.error("leaving the cluster: the log directory has failed", reason=str(error))
            self._spawn(self._withdraw())

    async def _withdraw(self) -> None:
        self.is_leaving = True
        await self._stop_controller()
        await self._leave()

    async def request_handover(self) -> bool:
        """Move this broker's leaderships and coordinator shards to other brokers, before it stops; return whether they
        moved."""
        registration = self.registration
        if registration is None or self.is_leaving or registration.lost.is_set():
            return False
        self.is_leaving = True
        try:
            moved = await registration.request_handover(HANDOVER_TIMEOUT_S)
        except StoreError as e:
            log.warning("leaderships not moved to other brokers", reason=str(e))
            return False
        if not moved:
            log.warning("leaderships not moved to other brokers in time", seconds=HANDOVER_TIMEOUT_S)
        return moved

    async def leave(self) -> None:
        """End the membership. This broker then neither leads, coordinates nor acknowledges."""
        self.is_leaving = True
        await self._stop_controller()
        await self._leave()

    async def close(self) -> None:
        """Leave, and cancel all tasks."""
        await self.leave()
        if self.ticking is not None:
            self.ticking.cancel()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.broker_reports is not None:
            await self.broker_reports.close()

    async def _stop_controller(self) -> None:
        controller_task, self.controller_task = self.controller_task, None
        if controller_task is not None:
            controller_task.cancel()
            await asyncio.gather(controller_task, return_exceptions=True)

    async def _leave(self) -> None:
        if self.renewal is not None:
            self.renewal.stop()
        if self.registration is not None and not self.registration.lost.is_set():
            with suppress(StoreError):  # the lease then expires by itself
                await self.registration.leave()

    # Background tasks

    def _tick(self) -> None:
        self.ticked_ms = self.environment.clock.boot_ms()
        self.ticking = asyncio.get_running_loop().call_later(PULSE_S, self._tick)

    async def _watch_loss(self, registration: Registration) -> None:
        await registration.lost.wait()
        await self._until_store_answers()  # a new registration needs the store; reads are served until then
        with suppress(StoreError):
            await self.restored.check()  # the reason may be a restored store
        if not self.is_leaving and not self.restored.is_frozen:  # a frozen broker serves reads
            self.on_lost(registration.lost_reason)

    async def _until_store_answers(self) -> None:
        while not self.is_leaving:
            try:
                await self.store.get(keys.CLUSTER)
            except StoreError:
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _watch_recovery(self) -> None:
        await self.restored.over.wait()
        if not self.is_leaving:
            self.on_lost("the store was restored from a backup and has been recovered")

    def _on_brokers(self) -> None:
        registration = self.registration
        if registration is not None and not self.is_leaving and self.view.revision >= registration.epoch:
            registration.check_view(self.view.brokers.get(self.config.node_id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = spawn(work, "membership")
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
