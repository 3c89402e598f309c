"""The offline dump prints the files and reports their problems."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from log_kit import TOPIC, append, batch_of, open_log, opened

from penstock.log.dump import dump
from penstock.runtime.disk import OsFiles


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """Create a directory with a log of several segments."""
    async with opened(OsFiles(), str(tmp_path)) as directory:
        log = open_log(directory)
        for number in range(60):
            append(log, batch_of(3, timestamp_ms=1000 + number, value=b"value %d" % number))
        await log.flush()
        await directory.maintenance.checkpoint(log)
    return tmp_path


def run(*paths: Path, verify: bool = True, records: bool = False) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    code = dump([str(p) for p in paths], verify=verify, records=records, json=True, out=out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


async def test_a_sound_directory_is_shown_whole(data: Path) -> None:
    code, lines = run(data, records=True)
    assert code == 0, [line for line in lines if line["kind"] == "problem"]
    assert sum(line["kind"] == "batch" for line in lines) == 60
    assert [line["offset"] for line in lines if line["kind"] == "record"] == list(range(180))
    record = next(line for line in lines if line["kind"] == "record" and line["offset"] == 4)
    assert (record["key"], record["value"], record["timestamp_ms"]) == ("k1", "value 1", 1002)
    kinds = {line["kind"] for line in lines}
    assert {"segment", "index-entry", "time-index-entry", "checkpoint", "checkpointed-segment", "directory"} <= kinds


async def test_as_text_each_thing_is_a_line(data: Path) -> None:
    out = io.StringIO()
    path = data / f"{TOPIC}-0" / "00000000000000000000.log"
    assert dump([str(path)], verify=True, records=False, json=False, out=out) == 0
    first, second = out.getvalue().splitlines()[:2]
    assert first.startswith(f"segment file={path} size_bytes=")
    assert second.startswith("batch position=0 size_bytes=")
    assert "base_offset=0" in second


@pytest.mark.parametrize(
    "name", ["00000000000000000000.log", "00000000000000000000.index", "00000000000000000000.timeindex", "checkpoint"]
)
@pytest.mark.parametrize("damage", ["flip", "tear"])
async def test_damage_is_a_problem_and_the_exit_code_is_1(data: Path, name: str, damage: str) -> None:
    path = data / f"{TOPIC}-0" / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2 + 3] ^= 2
    else:
        del content[-3:]
    path.write_bytes(content)
    code, lines = run(path)
    assert code == 1
    assert [line["file"] for line in lines if line["kind"] == "problem"] == [str(path)] * sum(
        line["kind"] == "problem" for line in lines
    )


async def test_files_that_are_not_there_or_not_ours_are_problems(data: Path) -> None:
    (data / "notes.txt").write_text("nothing")
    code, lines = run(data / "notes.txt", data / "00000000000000000009.log")
    assert code == 1
    assert [line["kind"] for line in lines] == ["problem", "problem"]


async def test_long_and_binary_values_are_cut_and_escaped(tmp_path: Path) -> None:
    async with opened(OsFiles(), str(tmp_path)) as directory:
        append(open_log(directory), batch_of(1, value=b"\xff" + b"x" * 1000))
    _, lines = run(tmp_path, records=True)
    value = next(line["value"] for line in lines if line["kind"] == "record")
    assert value.startswith("\\xffxxx")
    assert value.endswith("... (1001 bytes)")
