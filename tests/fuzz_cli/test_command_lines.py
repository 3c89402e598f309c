"""No user input causes a traceback: arguments of every command, job files, settings, variables, JSON lines."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from penstock_fuzz.surfaces import Surfaces


@pytest.mark.timeout(1200)
def test_every_input_ends_in_a_result_or_a_sentence(
    surfaces: Surfaces, surface: str, part: int, count: int, pytestconfig: pytest.Config
) -> None:
    try_one = surfaces.by_name()[surface]
    seen = 0

    @seed(int(pytestconfig.getoption("fuzz_seed")) * 1_000_003 + part)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        nonlocal seen
        seen += 1
        try_one(data)

    fuzz()
    assert seen >= count


EXPLAINED = [
    (["topic", "create", "t", "--config", "retention.ms"], "use NAME=VALUE, for example retention.ms=3600000"),
    (["topic", "alter", "t", "--config", "retention.ms"], "use NAME=VALUE, for example retention.ms=3600000"),
    (["topic", "alter", "t", "--config", "=1"], "use NAME=VALUE"),
    (["topic", "create", "t", "--partitions", "2147483648"], "2147483648 is not in the range"),
    (["topic", "create", "\udcff"], '"\\udcff" is not valid UTF-8'),
    (["cluster", "rebalance", "--replication-factor", "orders"], "use a topic and a number from 1 to 1,000"),
    (["cluster", "rebalance", "--replication-factor", "orders=" + "9" * 5_000], "use a topic and a number"),
    (["cluster", "rebalance", "--throttle", "9" * 5_000], "--throttle"),
    (["group", "reset-offsets", "g", "--topic", "t:x", "--to-latest"], "use TOPIC, or TOPIC:P,P"),
    (["group", "reset-offsets", "g", "--topic", "t:" + "9" * 5_000, "--to-latest"], "use TOPIC, or TOPIC:P,P"),
    (["group", "reset-offsets", "g", "--all-topics", "--shift-by", str(2**63)], "is out of range"),
    (["consume", "t", "--time", "9" * 5_000], "is not a time; use 2026-01-31T10:00:00Z"),
    (["consume", "t", "--time", "2026-02-30T00:00:00"], "is not a time"),
    (["produce", "t", "--linger-ms", "nan"], '"nan" is not a finite number'),
    (["produce", "t", "--header", "x"], '"x" is not a header; use NAME=VALUE'),
    (["up", "--set", "num.partitions"], "use NAME=VALUE, for example num.partitions=6"),
    (["up", "--data", "\udcff"], '"\\udcff" is not valid UTF-8'),
]


@pytest.mark.parametrize(("arguments", "says"), EXPLAINED)
def test_wrong_usage_is_exit_code_2_and_a_sentence(surfaces: Surfaces, arguments: list[str], says: str) -> None:
    ended = surfaces.programs.run((), arguments)
    ended.check()
    assert says in " ".join(ended.err.replace("│", " ").split())
    assert ended.code == 2


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("!!bool x", 'invalid value "x" of the tag !!bool'),
        ("!!timestamp x", 'invalid value "x" of the tag !!timestamp'),
        ("!!int ''", 'invalid value "" of the tag !!int'),
        ("!!float ''", 'invalid value "" of the tag !!float'),
        ("!!int x", "invalid literal"),
        ("9" * 5_000, "digits"),
        ("[" * 1_000, "invalid YAML"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_a_problem_with_its_place(surfaces: Surfaces, value: str, says: str) -> None:
    ended = surfaces.programs.run_spark(("validate",), ["--set=kind=archive", f"--set=name={value}"])
    ended.check()
    assert ended.code == 2
    assert says in ended.err


def test_deep_tables_of_settings_are_refused(surfaces: Surfaces) -> None:
    path = surfaces.folder / "deep-tables.toml"
    path.write_text("a." * 2_000 + "b = 1\n")
    ended = surfaces.programs.run(("up",), ["--config", str(path)])
    ended.check()
    assert (ended.code, "too deeply nested" in " ".join(ended.err.split())) == (2, True)
