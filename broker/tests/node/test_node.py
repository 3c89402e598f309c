"""A broker as a process: start, stop, durability, and settings."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from node_kit import Client, Process, fetch_request, port_of, reserved_port

from penstock.wire.errors import ErrorCode
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from penstock.wire.messages.fetch import FetchResponse
from penstock.wire.messages.metadata import MetadataResponse
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

pytestmark = pytest.mark.integration

Up = Callable[..., Process]
BROKER = 4


def commit(client: Client, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="here")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    client_request = OffsetCommitRequest(group_id="g", topics=topics)
    for _ in range(1000):
        answer = client.ask(client_request, OffsetCommitResponse, 8).topics[0].partitions[0]
        if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    assert answer.error_code == 0


def committed(client: Client) -> tuple[int, str | None]:
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    answer = client.ask(request, OffsetFetchResponse, 7).topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.committed_offset, answer.metadata


def leader_epoch(client: Client) -> int:
    return client.metadata("t").topics[0].partitions[0].leader_epoch


def epoch_end(client: Client, epoch: int) -> tuple[int, int]:
    topics = [OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=epoch)])]
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)
    answer = client.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.leader_epoch, answer.end_offset


def brokers(response: MetadataResponse) -> list[tuple[str, int]]:
    return [(b.host, b.port) for b in response.brokers]


def setting(client: Client, name: str) -> str | None:
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="0", configuration_keys=[name])
    answer = client.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)
    (config,) = answer.results[0].configs
    return config.value


def test_topics_data_and_offsets_survive_a_clean_end_and_one_by_force(up: Up) -> None:
    first = up()
    with Client(first.port) as client:
        client.metadata("t")
        assert client.produce("t", b"one", b"two") == 0
        commit(client, 1)
        assert leader_epoch(client) == 0
    assert not first.was_clean
    assert first.stop() == 0
    assert first.was_clean

    second = up()
    assert not second.was_clean, "what counts from now on is not clean yet"
    with Client(second.port) as client:
        assert leader_epoch(client) == 0, "a clean end needs no new leader epoch"
        assert client.values("t") == [b"one", b"two"]
        assert committed(client) == (1, "here")
        assert client.produce("t", b"three") == 2
    second.process.kill()
    second.ended()

    third = up()
    with Client(third.port) as client:
        assert leader_epoch(client) == 1, "after an end by force a new leader epoch begins"
        assert client.values("t") == [b"one", b"two", b"three"]
        assert committed(client) == (1, "here")
        assert epoch_end(client, 0) == (0, 3)
        assert client.produce("t", b"four") == 3
        assert epoch_end(client, 0) == (0, 3)
        assert epoch_end(client, 1) == (1, 4)
    assert third.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_answers_a_reader_that_waits(up: Up, number: int) -> None:
    process = up()
    with Client(process.port) as client:
        client.metadata("t")
        client.produce("t", b"one")
        client.send(fetch_request("t", 1, max_wait_ms=300_000), 11)
        with Client(process.port) as other:
            other.metadata()  # the broker has the earlier request once it answers this one
        assert process.stop(number) == 0
        data = client.receive(FetchResponse, 11).responses[0].partitions[0]
        assert (data.error_code, data.high_watermark) == (0, 1)
    assert process.was_clean


def test_one_line_says_where_it_serves_and_free_ports_are_picked(up: Up) -> None:
    process = up(listen=("--port", "0", "--http-port", "0"))
    assert process.port != process.http_port != 0
    with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/health/ready", timeout=30) as answer:
        assert answer.status == 200
    with Client(process.port) as client:
        assert brokers(client.metadata()) == [("127.0.0.1", process.port)]
    process.process.send_signal(signal.SIGTERM)
    code, out, err = process.ended()
    assert (code, out) == (0, ""), "nothing but that line goes to standard output"
    assert "Traceback" not in err


def test_settings_come_from_the_file_the_environment_and_the_command_line_and_the_later_wins(
    up: Up, tmp_path: Path
) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[num]\npartitions = 2\n[log.retention]\nhours = 5\nbytes = 1000\n")
    process = up(
        "--config",
        str(file),
        "--set",
        "num.partitions=4",
        environment={"PENSTOCK_SET_NUM_PARTITIONS": "3", "PENSTOCK_SET_LOG_RETENTION_BYTES": "2000"},
    )
    with Client(process.port) as client:
        assert len(client.metadata("t").topics[0].partitions) == 4
        assert setting(client, "num.partitions") == "4"
        assert setting(client, "log.retention.bytes") == "2000"
        assert setting(client, "log.retention.hours") == "5"


def test_a_penstock_toml_in_the_current_directory_is_read(up: Up, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('"num.partitions" = 3\n')
    with Client(up().port) as client:
        assert len(client.metadata("t").topics[0].partitions) == 3


def test_variables_that_kubernetes_injects_for_a_service_of_that_name_mean_nothing(up: Up) -> None:
    process = up(environment={"PENSTOCK_PORT": "tcp://10.0.0.7:9092", "PENSTOCK_SERVICE_HOST": "10.0.0.7"})
    with Client(process.port) as client:
        assert brokers(client.metadata()) == [("127.0.0.1", process.port)]


def test_clients_of_each_listener_are_told_its_own_address(up: Up) -> None:
    with reserved_port() as reserved:
        outside = port_of(reserved)
        process = up(
            "--listener",
            "IN://127.0.0.1:0",
            "--listener",
            f"OUT://127.0.0.1:{outside}",
            "--advertise",
            "OUT://queue.example.com:19093",
            "--set",
            "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT",
            listen=("--http-port", "-1"),
        )
    with Client(process.port) as client:
        assert brokers(client.metadata("t")) == [("127.0.0.1", process.port)]
        client.produce("t", b"one")
    with Client(outside) as client:
        assert brokers(client.metadata()) == [("queue.example.com", 19093)]
        assert client.values("t") == [b"one"]


def test_what_is_announced_is_what_the_protocol_page_says(up: Up) -> None:
    with Client(up().port) as client:
        announced = client.ask(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), ApiVersionsResponse, 3
        ).api_keys
    page = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text()
    rows = re.findall(r"^\| (\d+) \| \w+ \| (\d+)(?: \(\d+\))? to (\d+) \|$", page, re.MULTILINE)
    assert {tuple(map(int, row)) for row in rows} == {(a.api_key, a.min_version, a.max_version) for a in announced}
