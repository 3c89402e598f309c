"""The budget of recently appended data follows the free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.runtime.cache_budget import (
    MAX_KEEP_BYTES,
    MAX_PSEUDO_FILE_BYTES,
    MIN_KEEP_BYTES,
    REFRESH_INTERVAL_NS,
    AvailableMemory,
    CacheBudget,
)


@pytest.mark.parametrize(
    ("available", "keep_bytes"),
    [
        (None, MIN_KEEP_BYTES),
        (0, MIN_KEEP_BYTES),
        (MIN_KEEP_BYTES, MIN_KEEP_BYTES),
        (4 * MIN_KEEP_BYTES, 2 * MIN_KEEP_BYTES),
        (4 * MAX_KEEP_BYTES, MAX_KEEP_BYTES),
    ],
)
def test_the_budget_is_half_of_the_memory_within_bounds(available: int | None, keep_bytes: int) -> None:
    assert CacheBudget(lambda: available).keep_bytes == keep_bytes


def test_the_budget_follows_the_memory() -> None:
    available = [4 * MIN_KEEP_BYTES, 6 * MIN_KEEP_BYTES]
    budget = CacheBudget(lambda: available.pop(0))
    assert budget.is_refresh_due(0)
    assert not budget.is_refresh_due(REFRESH_INTERVAL_NS - 1)
    assert budget.is_refresh_due(REFRESH_INTERVAL_NS)
    budget.refresh()
    assert budget.keep_bytes == 3 * MIN_KEEP_BYTES


@pytest.mark.parametrize("fixed_bytes", [0, 5, 10 * MAX_KEEP_BYTES])
def test_a_fixed_budget_does_not_depend_on_the_memory(fixed_bytes: int) -> None:
    budget = CacheBudget(lambda: 1 << 40, fixed_bytes)
    assert budget.keep_bytes == fixed_bytes
    assert not budget.is_refresh_due(REFRESH_INTERVAL_NS)


def memory(root: Path, files: dict[str, str | bytes]) -> int | None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return AvailableMemory(str(root))()


MACHINE = {"proc/meminfo": "MemTotal:       4000 kB\nMemAvailable:   2000 kB\n"}
V2 = {"proc/self/cgroup": "0::/pod/broker\n"}
V2_DIR = "sys/fs/cgroup/pod/broker"


def test_without_a_cgroup_the_machines_memory_counts(tmp_path: Path) -> None:
    assert memory(tmp_path, MACHINE) == 2_048_000


def test_without_any_file_nothing_is_known(tmp_path: Path) -> None:
    assert memory(tmp_path, {}) is None


@pytest.mark.parametrize("directory", [V2_DIR, "sys/fs/cgroup"])
def test_a_cgroup_v2_limits_the_memory_and_its_page_cache_counts_as_available(tmp_path: Path, directory: str) -> None:
    files = {
        f"{directory}/memory.max": "1000000\n",
        f"{directory}/memory.high": "900000\n",
        f"{directory}/memory.current": "800000\n",
        f"{directory}/memory.stat": "anon 300000\ninactive_file 400000\nactive_file 100000\n",
    }
    assert memory(tmp_path, {**MACHINE, **V2, **files}) == 600_000


def test_a_cgroup_v1_limits_the_memory(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:memory:/pod\n2:cpu,cpuacct:/\n",
        "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "300000\n",
    }
    assert memory(tmp_path, {**MACHINE, **files}) == 700_000


def test_a_cgroup_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {f"{V2_DIR}/memory.max": "1000", f"{V2_DIR}/memory.current": "5000"}
    assert memory(tmp_path, {**MACHINE, **V2, **files}) == 0


@pytest.mark.parametrize(
    "files",
    [
        {f"{V2_DIR}/memory.max": "max\n", f"{V2_DIR}/memory.current": "5"},
        {f"{V2_DIR}/memory.max": "9223372036854771712\n", f"{V2_DIR}/memory.current": "5"},
        {f"{V2_DIR}/memory.max": "1000"},
        {f"{V2_DIR}/memory.max": "-1", f"{V2_DIR}/memory.current": "5"},
        {f"{V2_DIR}/memory.max": "1" * 5000, f"{V2_DIR}/memory.current": "5"},
        {f"{V2_DIR}/memory.max": b"\xff\xfe\x00", f"{V2_DIR}/memory.current": "5"},
        {f"{V2_DIR}/memory.max": "", f"{V2_DIR}/memory.current": ""},
        {"proc/self/cgroup": "0::/a\0b\n"},
        {"proc/self/cgroup": "nonsense\n::::\n0::/../../etc\n"},
        {"proc/self/cgroup": "0::/" + "x" * 2 * MAX_PSEUDO_FILE_BYTES},
    ],
)
def test_missing_or_malformed_limits_of_a_cgroup_are_no_limits(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    assert memory(tmp_path, {**MACHINE, **V2, **files}) == 2_048_000


@pytest.mark.parametrize(
    "content", ["", "MemAvailable:", "MemAvailable: many kB", "MemAvailable 12\x00kB", "\x00" * 99]
)
def test_malformed_memory_of_the_machine_is_unknown(tmp_path: Path, content: str) -> None:
    assert memory(tmp_path, {"proc/meminfo": content}) in (None, 0)
