"""A broker refuses to start on another broker's data directory or on one in use, with an exit code and a message."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from penstock_crash import reading
from penstock_crash.broker import DEADLINE_S, Broker

from penstock.log.meta import FORMAT_VERSION, DirectoryMeta

MakeBroker = Callable[..., Broker]
REFUSED = 1


@pytest.fixture
def used(home: Path, make_broker: MakeBroker) -> Broker:
    """A broker that ran in its directory and was stopped."""
    made = make_broker()
    made.start()
    reading.create_topic(made.bootstrap, "kept", 1)
    made.stop()
    return made


def refusal_of(broker: Broker) -> str:
    """Start the broker and return its stderr. It must refuse to start, without a traceback."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == REFUSED, f"exit code {done.returncode}: {done.stderr}"
    assert "ready" not in done.stdout
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("penstock up: ")]
    assert len(said) == 1, f"one sentence is expected: {done.stderr}"
    return said[0]


def change_meta(broker: Broker, **changes: object) -> None:
    """Change the directory's meta.json, as if another broker had written it."""
    path = broker.data / "meta.json"
    meta = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=DirectoryMeta), **changes)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(meta, crc=meta.checksum())))


def still_has_its_topic(broker: Broker) -> None:
    broker.start()
    assert "kept" in reading.topics(broker.bootstrap)
    broker.stop()


def test_a_second_process_on_the_same_directory_is_refused_and_the_first_goes_on(
    home: Path, make_broker: MakeBroker
) -> None:
    first = make_broker()
    first.start()
    second = make_broker(home=home, data=first.data)
    said = refusal_of(second)
    assert str(first.data) in said
    assert "in use by another process" in said
    reading.create_topic(first.bootstrap, "unharmed", 1)
    assert "unharmed" in reading.topics(first.bootstrap)
    first.stop()
    second.start()
    assert "unharmed" in reading.topics(second.bootstrap)


def test_a_directory_is_free_again_when_the_process_that_had_it_was_killed(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.start()
    broker.kill()
    broker.start()


def test_the_directory_of_another_broker_id_is_refused(used: Broker) -> None:
    used.settings["node.id"] = "7"
    said = refusal_of(used)
    assert str(used.data) in said
    assert "belongs to broker 0, not 7" in said
    del used.settings["node.id"]
    still_has_its_topic(used)


def test_the_directory_of_another_cluster_is_refused(used: Broker, home: Path, make_broker: MakeBroker) -> None:
    (home / "other").mkdir()
    other = make_broker(home=home / "other")
    other.start()
    other.stop()
    own = (used.data / "meta.json").read_bytes()
    shutil.copy(other.data / "meta.json", used.data / "meta.json")
    said = refusal_of(used)
    assert str(used.data) in said
    assert "belongs to cluster" in said
    (used.data / "meta.json").write_bytes(own)
    still_has_its_topic(used)


def test_a_directory_in_a_newer_format_is_refused(used: Broker) -> None:
    change_meta(used, format_version=FORMAT_VERSION + 1)
    said = refusal_of(used)
    assert str(used.data) in said
    assert f"has format {FORMAT_VERSION + 1}" in said
    change_meta(used, format_version=FORMAT_VERSION)
    still_has_its_topic(used)


def test_state_in_a_newer_format_is_refused(used: Broker) -> None:
    with sqlite3.connect(used.data / "state.db") as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        database.execute("PRAGMA user_version = 99")
    database.close()
    said = refusal_of(used)
    assert str(used.data / "state.db") in said
    assert "has format 99" in said
    with sqlite3.connect(used.data / "state.db") as database:
        database.execute(f"PRAGMA user_version = {version}")
    database.close()
    still_has_its_topic(used)


def test_a_damaged_meta_file_is_refused(used: Broker) -> None:
    path = used.data / "meta.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"broker_id": 0', b'"broker_id": 1'))
    assert path.read_bytes() != data
    said = refusal_of(used)
    assert str(path) in said
    assert "is damaged" in said
    path.write_bytes(data)
    still_has_its_topic(used)


def test_a_file_where_the_directory_should_be_is_refused(home: Path, make_broker: MakeBroker) -> None:
    (home / "data").write_text("not a directory")
    assert str(home / "data") in refusal_of(make_broker())
