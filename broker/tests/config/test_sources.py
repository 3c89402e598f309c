"""Sources of settings, their precedence, and error messages for invalid settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.definition import InvalidSetting
from penstock.config.listeners import ListenerAddress, advertised_listeners, parse_listeners
from penstock.config.sources import load


def write(path: Path, text: str) -> str:
    file = path / "penstock.toml"
    file.write_text(text)
    return str(file)


def test_nothing_given_is_the_defaults() -> None:
    assert load().num_partitions == 1


def test_what_is_said_later_wins(tmp_path: Path) -> None:
    file = write(tmp_path, "num.partitions = 2\nfetch.max.bytes = 2000\nmax.connections = 2\n")
    environment = {
        "PENSTOCK_SET_NUM_PARTITIONS": "3",
        "PENSTOCK_SET_FETCH_MAX_BYTES": "3000",
        "PENSTOCK_PORT": "tcp://x",
    }
    config = load(file, environment, {"num.partitions": "4"})
    assert (config.num_partitions, config.fetch_max_bytes, config.max_connections) == (4, 3000, 2)


def test_a_file_may_use_tables_dotted_names_and_toml_types(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        "delete.topic.enable" = false
        listeners = ["A://127.0.0.1:1", "B://127.0.0.1:2"]
        log.cleaner.min.cleanable.ratio = 0.25
        [log.retention]
        hours = 2
        [group]
        max.size = 10
        """,
    )
    config = load(file)
    assert config.delete_topic_enable is False
    assert config.listeners == "A://127.0.0.1:1,B://127.0.0.1:2"
    assert config.topic_defaults.min_cleanable_dirty_ratio == 0.25
    assert config.topic_defaults.retention_ms == 7_200_000
    assert config.group_max_size == 10


@pytest.mark.parametrize(
    ("file", "environment", "options", "message"),
    [
        (
            "num.partition = 1",
            {},
            {},
            r"unknown broker setting \"num.partition\"; did you mean num.partitions\? \(in .*toml",
        ),
        (None, {"PENSTOCK_SET_NUM_PARTITION": "1"}, {}, r"num.partitions\? .*variable PENSTOCK_SET_NUM_PARTITION"),
        (None, {}, {"num.partition": "1"}, r"did you mean num.partitions\? \(given with --set\)"),
        (None, {}, {"xyzzy": "1"}, r"unknown broker setting \"xyzzy\" \(given with --set\)"),
        (None, {}, {"retention.ms": "1"}, r"a topic setting.*log\.retention\.ms"),
        ("num.partitions = 0", {}, {}, r"invalid value \"0\" for num.partitions: .* 1 to 100000 \(in .*toml"),
        (None, {"PENSTOCK_SET_NUM_PARTITIONS": "many"}, {}, r"\"many\" for num.partitions.*environment"),
        ("num.partitions =", {}, {}, "not valid TOML"),
        ("num.partitions = 1979-05-27", {}, {}, "must be a string"),
        ("num.partitions = [[1]]", {}, {}, "must be a string"),
    ],
)
def test_errors_name_the_setting_the_place_and_the_cure(
    tmp_path: Path, file: str | None, environment: dict[str, str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        load(write(tmp_path, file) if file else None, environment, options)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = 1\n" * 300_000, b"x" + b"[" * 100_000])
def test_hostile_files_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "penstock.toml"
    file.write_bytes(content)
    with pytest.raises(InvalidSetting, match=r"penstock\.toml"):
        load(str(file))


def test_listeners_have_names_hosts_and_ports() -> None:
    assert parse_listeners("inside://[::1]:9092, OUT_1://:0") == [
        ListenerAddress("INSIDE", "::1", 9092),
        ListenerAddress("OUT_1", "", 0),
    ]
    assert str(ListenerAddress("A", "::1", 2)) == "A://[::1]:2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A://h",
        "A://h:",
        "A://h:65536",
        "A://h:-1",
        "A:/h:1",
        "A B://h:1",
        "A://u@h:1",
        "A://h:1/x",
    ],
)
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"invalid listeners? "):
        parse_listeners(text)


def test_listeners_need_names_and_addresses_of_their_own() -> None:
    with pytest.raises(InvalidSetting, match="twice"):
        parse_listeners("A://h:1,a://h:2")
    with pytest.raises(InvalidSetting, match="same address"):
        parse_listeners("A://h:1,B://h:1")
    parse_listeners("A://h:0,B://h:0")
    with pytest.raises(InvalidSetting, match="at most"):
        parse_listeners(",".join(f"L{i}://h:0" for i in range(33)))


def test_what_is_advertised_is_what_is_given_else_where_it_listens() -> None:
    listeners = parse_listeners("A://127.0.0.1:1,B://0.0.0.0:2,C://h:3")
    assert [str(a) for a in advertised_listeners(listeners, "C://example.org:30", "box")] == [
        "A://127.0.0.1:1",
        "B://box:2",
        "C://example.org:30",
    ]
    assert str(advertised_listeners(listeners, "C://example.org:0", "box")[2]) == "C://example.org:3"


def test_addresses_that_nobody_can_reach_and_listeners_that_there_are_not_are_refused() -> None:
    listeners = parse_listeners("A://127.0.0.1:1")
    with pytest.raises(InvalidSetting, match="clients cannot connect to"):
        advertised_listeners(listeners, "A://0.0.0.0:1", "box")
    with pytest.raises(InvalidSetting, match='listener "B" does not exist; use one of A'):
        advertised_listeners(listeners, "B://h:1", "box")
