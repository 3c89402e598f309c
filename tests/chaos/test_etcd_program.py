"""The chaos tests accept only an etcd whose data survives a kill; without one, the error says how to get one."""

from __future__ import annotations

from pathlib import Path

import pytest
from penstock_chaos import etcd_program
from penstock_chaos.etcd_program import NoEtcd, find_etcd


def program(directory: Path, version: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "etcd"
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(etcd_program.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def test_the_one_that_is_named_comes_before_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = program(tmp_path / "bin", "3.4.23")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    assert find_etcd() == str(on_path)
    named = program(tmp_path / "named", "3.5.21")
    monkeypatch.setenv(etcd_program.VARIABLE, str(named))
    assert find_etcd() == str(named)


def test_a_release_that_may_lose_data_is_refused_where_it_is_named_and_passed_over_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(etcd_program.VARIABLE, str(program(tmp_path / "named", "3.5.1")))
    with pytest.raises(NoEtcd, match="may lose data"):
        find_etcd()
    monkeypatch.delenv(etcd_program.VARIABLE)
    program(tmp_path / "bin", "3.5.1")
    with pytest.raises(NoEtcd, match="no go on PATH"):
        find_etcd()


def test_one_that_was_built_before_is_taken() -> None:
    built = etcd_program.built_program()
    built.parent.mkdir(parents=True)
    program(built.parent, "3.5.21").rename(built)
    assert find_etcd() == str(built)


@pytest.mark.parametrize("named", ["missing", "other"])
def test_what_is_no_etcd_is_refused(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho something else\n")
    other.chmod(0o755)
    monkeypatch.setenv(etcd_program.VARIABLE, str(tmp_path / named))
    with pytest.raises(NoEtcd, match=etcd_program.VARIABLE):
        find_etcd()
