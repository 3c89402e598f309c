"""`penstock up` for clusters: combinations of flags, the options of each broker, the format of lines."""

from __future__ import annotations

import io
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from penstock.cli import up as module
from penstock.cli import up_checks
from penstock.cli.local_cluster import etcd
from penstock.cli.local_cluster.console import MAX_LINE_BYTES, Console, LineSplitter
from penstock.cli.local_cluster.plan import LocalCluster, broker_command, manual_command
from penstock.cli.local_cluster.processes import exit_text
from penstock.config.options import UpOptions

Up = Callable[..., tuple[int, str]]
URL = "http://127.0.0.1:1"


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Up:
    """Return a function that runs `penstock up` in this process and fails the test if a broker would start."""

    def begin(*what: object) -> NoReturn:
        pytest.fail(f"it would have started {what}")

    monkeypatch.setattr(module, "exec_broker", begin)
    monkeypatch.setattr("penstock.cli.local_cluster.command.run", begin)

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(module.app, list(arguments))
        return result.exit_code, " ".join(result.output.replace("│", " ").split())

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--etcd", URL], "--etcd needs --id"),
        (["--etcd", URL, "--id", "-1"], "--id"),
        (["--id", "1", "--set", "node.id=2"], "contradict each other"),
        (["--etcd-user", "me"], "--etcd-user needs --etcd"),
        (["--etcd-key", "file"], "--etcd-key needs --etcd"),
        (["--restart"], "--restart needs --brokers"),
        (["--brokers", "0"], "--brokers"),
        (["--brokers", "3", "--id", "1"], "leave --id out"),
        (["--brokers", "3", "--listener", "A://127.0.0.1:1"], "cannot be used with --brokers"),
        (["--brokers", "3", "--port", "65534"], "--port 65534"),
        (["--brokers", "3", "--http-port", "65534"], "--http-port 65534"),
        (["--brokers", "3", "--port", "8081"], "choose ports further apart"),
        (["--brokers", "3", "--etcd-user", "me"], "set --etcd URL"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(up: Up, tmp_path: Path, arguments: list[str], says: str) -> None:
    code, error = up("--data", str(tmp_path / "data"), *arguments)
    assert (code, says in error) == (2, True), error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("there", "arguments", "says"),
    [
        (["state.db.adopted"], [], "was moved into a cluster"),
        (["state.db"], ["--etcd", URL, "--id", "1"], "penstock cluster adopt --data"),
        (["etcd/member/"], [], "belongs to a local cluster"),
        (["meta.json"], ["--brokers", "3"], "belongs to a single broker"),
        (["state.db"], ["--brokers", "3"], "belongs to a single broker"),
    ],
)
def test_the_directory_of_another_kind_of_broker_is_refused(
    up: Up, tmp_path: Path, there: list[str], arguments: list[str], says: str
) -> None:
    for name in there:
        (tmp_path / name).mkdir(parents=True) if name.endswith("/") else (tmp_path / name).touch()
    code, error = up("--data", str(tmp_path), *arguments)
    assert (code, says in error) == (2, True), error


@pytest.mark.parametrize(
    ("options", "environment", "file", "has_one"),
    [
        (UpOptions(settings={"node.id": "1"}), {}, None, True),
        (UpOptions(), {"PENSTOCK_SET_NODE_ID": "1"}, None, True),
        (UpOptions(), {}, "[node]\nid = 1\n", True),
        (UpOptions(), {}, "num.partitions = 1\n", False),
        (UpOptions(), {}, None, False),
        (UpOptions(), {}, "not = toml = at all", True),
        (UpOptions(config_file="/no/such/file"), {}, None, True),
    ],
)
def test_the_id_may_come_from_any_source_of_settings(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: UpOptions,
    environment: dict[str, str],
    file: str | None,
    has_one: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    if file is not None:
        (tmp_path / "penstock.toml").write_text(file)
    assert up_checks.has_id(options, environment) is has_one


def test_each_broker_has_its_own_directory_ports_and_id() -> None:
    cluster = LocalCluster(UpOptions(data_dir="d", port=9092, http_port=8080, settings={"num.partitions": "6"}), 3)
    third = cluster.broker_options(3, [URL], "auto")
    assert third.data_dir == "d/3"
    assert (third.port, third.http_port, third.listeners) == (9094, 8082, ["PLAINTEXT://127.0.0.1:9094"])
    assert third.settings["node.id"] == "3"
    assert third.settings["num.partitions"] == "6"
    assert third.settings["etcd.managed"] == "true", "its etcd is its own"
    assert (third.etcd, third.log_format) == ([URL], "json")


def test_free_ports_and_no_http_stay_what_they_are() -> None:
    options = LocalCluster(UpOptions(port=0, http_port=0), 2).broker_options(2, [URL], "text")
    assert (options.port, options.http_port, options.log_format) == (0, 0, "text")
    assert LocalCluster(UpOptions(http_port=None), 2).broker_options(2, [URL], "text").http_port is None


def test_an_etcd_that_was_there_before_is_left_to_its_owner() -> None:
    options = LocalCluster(UpOptions(etcd=["http://10.0.0.1:2379"]), 2).broker_options(
        1, ["http://10.0.0.1:2379"], "text"
    )
    assert "etcd.managed" not in options.settings


def test_an_address_of_ipv6_is_a_listener() -> None:
    assert LocalCluster(UpOptions(host="::1"), 1).broker_options(1, [URL], "text").listeners == [
        "PLAINTEXT://[::1]:9092"
    ]


@pytest.mark.integration
def test_etcd_has_its_usual_ports_unless_somebody_else_has_or_free_ones_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = tuple(etcd.free_ports(2))
    monkeypatch.setattr(etcd, "DEFAULT_PORTS", usual)
    assert etcd.choose_ports(use_defaults=True) == usual
    assert etcd.choose_ports(use_defaults=False) != usual
    with socket.create_server((etcd.HOST, usual[1])):
        client, peer = etcd.choose_ports(use_defaults=True)
    assert not {client, peer} & set(usual)


def test_data_of_brokers_that_are_not_started_is_noticed(tmp_path: Path) -> None:
    for name in ("1", "2", "5", "etcd", "x7"):
        (tmp_path / name).mkdir()
    assert LocalCluster(UpOptions(data_dir=str(tmp_path)), 2).unstarted_brokers() == [5]
    assert LocalCluster(UpOptions(data_dir=str(tmp_path / "none")), 2).unstarted_brokers() == []


def test_the_command_by_hand_says_the_same_as_the_supervisors() -> None:
    given = UpOptions(data_dir="a b", host="127.0.0.2", settings={"num.partitions": "6"}, etcd_ca_file="ca.pem")
    cluster = LocalCluster(given, 3)
    options = cluster.broker_options(2, [URL], "text")
    words = shlex.split(manual_command(options))
    assert words[:4] == ["penstock", "up", "--etcd", URL]
    pairs = dict(zip(words[2::2], words[3::2], strict=True))
    assert (pairs["--id"], pairs["--etcd-ca"]) == ("2", "ca.pem")
    assert pairs["--data"] == "a b/2"
    assert (pairs["--host"], pairs["--port"], pairs["--http-port"]) == ("127.0.0.2", "9093", "8081")
    assert "num.partitions=6" in words
    assert broker_command(options)[1:3] == ["-m", "penstock.node"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_stand_in_a_column_and_have_colours_on_a_terminal_alone() -> None:
    plain, terminal, bare = io.StringIO(), Terminal(), Terminal()
    Console(["broker-1", "etcd"], plain, {}).write("etcd", "hello")
    assert plain.getvalue() == "etcd     | hello\n"
    console = Console(["broker-1", "etcd"], terminal, {})
    console.write("broker-1", "a")
    console.write("etcd", "b")
    assert terminal.getvalue() == "\x1b[36mbroker-1 |\x1b[0m a\n\x1b[33metcd     |\x1b[0m b\n"
    Console(["broker-1"], bare, {"NO_COLOR": "1"}).write("broker-1", "a")
    assert "\x1b" not in bare.getvalue()


def test_lines_come_whole_however_they_are_cut() -> None:
    lines = LineSplitter()
    assert lines.feed(b"one\ntw") == ["one"]
    assert lines.feed(b"o\r\n\xc3") == ["two"]
    assert lines.feed(b"\xa4\n") == ["ä"]
    assert lines.feed(b"rest") == []
    assert (lines.flush(), lines.flush()) == (["rest"], [])


def test_a_line_without_an_end_is_shown_in_pieces() -> None:
    lines = LineSplitter()
    shown = lines.feed(b"x" * (2 * MAX_LINE_BYTES + 5))
    assert [len(line) for line in shown] == [MAX_LINE_BYTES, MAX_LINE_BYTES]
    assert lines.flush() == ["x" * 5]


@pytest.mark.parametrize(
    ("code", "says"), [(0, "exited with code 0"), (-9, "was killed by SIGKILL"), (-200, "was killed by signal 200")]
)
def test_the_way_a_process_ended_is_told_in_words(code: int, says: str) -> None:
    assert exit_text(code) == says
