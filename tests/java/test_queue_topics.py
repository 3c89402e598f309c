"""Apache's Java client with topics whose records are scheduled, and with topics that get fewer partitions.

`queues/` holds the programs. Apache Kafka has no such topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from flow_kit import PARTITIONS, ProgramFlow, shrink_while_running
from penstock_e2e.trio import Trio
from penstock_java.build import compile_scenarios, program
from penstock_java.runner import FLAGS, Runner

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("java-queues")]

CLIENTS = ("4.3.1", "4.4.0")
FOLDERS = ("src", "queues")
ClassPathOf = Callable[[str], str]


@pytest.fixture(scope="session")
def class_path_of(tmp_path_factory: pytest.TempPathFactory) -> ClassPathOf:
    """Return a function for the class path of a release, compiled at its first use."""
    made: dict[str, str] = {}

    def get(client: str) -> str:
        if client not in made:
            made[client] = compile_scenarios(client, tmp_path_factory.mktemp(f"queues-{client}") / "classes", FOLDERS)
        return made[client]

    return get


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Yield a stack whose programs are ended at the end of the test, also of a failed one."""
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("client", CLIENTS)
def test_scheduled_records_are_delivered_at_their_time(
    brokers_to_kill: Trio, class_path_of: ClassPathOf, client: str, tmp_path: Path
) -> None:
    runner = Runner(class_path_of(client), brokers_to_kill.bootstrap, tmp_path / "errors.log")
    try:
        outcome = runner.run("scheduled-records")
    finally:
        runner.close()
    assert outcome["passed"], "\n".join([outcome["failure"], "warnings:", *outcome["warnings"]])


def test_each_acknowledged_record_is_received_once_while_topics_get_fewer_partitions(
    brokers_to_kill: Trio, class_path_of: ClassPathOf, stack: ExitStack, tmp_path: Path
) -> None:
    flows = []
    for client, protocol in zip(CLIENTS, ("classic", "consumer"), strict=True):
        topic = f"of-java-{client}"
        brokers_to_kill.create_topics(topic, partitions=PARTITIONS)
        command = [program("java"), *FLAGS, "-cp", class_path_of(client), "scenarios.FlowMain", protocol]
        flow = ProgramFlow(command, brokers_to_kill.bootstrap, topic, tmp_path / f"{client}.log")
        stack.callback(flow.end)
        flows.append(flow)
    shrink_while_running(brokers_to_kill.bootstrap, flows, frozenset({"TimeoutException"}))
