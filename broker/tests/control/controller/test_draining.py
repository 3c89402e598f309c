"""`broker.draining`, from the admin client's request to the registration, the controller, leaders and back."""

from __future__ import annotations

import pytest

from penstock.control.broker_reports import ReportedSettings
from penstock.control.config_admin import ConfigService
from penstock.control.results import ConfigChange, ConfigOperation, ConfigResource
from penstock.runtime.clock import SystemClock
from penstock.state import keys
from penstock.state.records import BrokerRecord, decode
from penstock.wire.errors import ErrorCode

SETTING = "broker.draining"


async def ask(world, broker: int, operation: ConfigOperation, value: str | None) -> None:
    """Alter the setting through another broker as IncrementalAlterConfigs does, then update the registration."""
    other = world.brokers[1]
    admin = ConfigService(world.store, other.view, other.watcher, other.config, SystemClock())
    change = [ConfigChange(SETTING, operation, value)]
    outcome = await world.finish(admin.change(ConfigResource.BROKER, str(broker), change))
    assert outcome.error is ErrorCode.NONE, outcome
    node = world.brokers[broker]
    await world.finish(node.registration.report_settings(ReportedSettings.from_config(node.config)))
    await world.time.settle()


async def registered(world, broker: int) -> BrokerRecord:
    entry = await world.store.get(keys.broker(broker))
    return decode(BrokerRecord, entry.key, entry.value)


async def test_a_drain_that_a_client_asks_for_is_known_to_all_and_empties_the_broker(world) -> None:
    await world.start(1, 2, 3, 4)
    await world.time.until(lambda: world.controllers() == [1])
    await world.topic("t", [4, 1, 2], [2, 4, 3])
    epoch = world.epoch(4)
    await ask(world, 4, ConfigOperation.SET, "true")
    assert (await registered(world, 4)).draining
    assert world.epoch(4) == epoch, "it is no new incarnation"
    for node in world.brokers.values():
        assert node.view.brokers[4].draining, "leaders do not let it join"
    controller = world.the_controller()
    assert controller.term.registry.members[4].is_draining

    def admitted() -> bool:
        return all(p.adding for p in world.view.topics["t"].partitions)

    await world.time.until(admitted)
    for index, new in ((0, 3), (1, 1)):
        assert world.partition("t", index).adding == [new]
        await world.admit("t", index, new)
    await world.time.until(lambda: all(4 not in p.replicas for p in world.view.topics["t"].partitions))
    assert all(p.leader != 4 for p in world.view.topics["t"].partitions)


@pytest.mark.slow
async def test_a_drain_that_is_taken_back_is_over_for_all(world) -> None:
    await world.start(1, 2, 3)
    await world.time.until(lambda: world.controllers() == [1])
    await ask(world, 3, ConfigOperation.SET, "true")
    await ask(world, 3, ConfigOperation.DELETE, None)
    assert not (await registered(world, 3)).draining
    assert not world.view.brokers[3].draining
    assert world.the_controller().term.registry.members[3].may_be_chosen
    await world.create("t", 3, 3)
    assert sorted(p.leader for p in world.view.topics["t"].partitions) == [1, 2, 3]
    assert all(p.isr_epochs == [world.epoch(b) for b in p.isr] for p in world.view.topics["t"].partitions)
