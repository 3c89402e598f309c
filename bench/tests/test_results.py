"""Figures, verdicts and the report, from constructed rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import report, requirements, results
from bench.requirements import Bound, Requirement, State
from bench.results import Figure, Header, Recorder, Results, Row


def _header(suite: str) -> Header:
    return Header(
        suite=suite, command="python -m bench", started_at="now", rounds=3, machine={"CPU": "one"}, peers={"k": "Kafka"}
    )


def _results(suite: str, case: str, metric: str, lanes: dict[str, list[float]], **more: float) -> Results:
    rows = [
        Row(case=case, lane=lane, round=round_, metrics={metric: value, **more})
        for lane, values in lanes.items()
        for round_, value in enumerate(values)
    ]
    return Results(_header(suite), rows)


def test_a_ratio_is_that_of_the_medians_and_its_spread_that_of_the_rounds() -> None:
    assert results.ratio_of_medians([1.0, 2.0, 9.0], [2.0, 4.0, 3.0]) == Figure(2 / 3, 0.5, 3.0)


def test_pairs_are_judged_by_the_median_of_their_ratios() -> None:
    assert results.median_of_ratios([1.0, 2.0, 9.0], [2.0, 4.0, 3.0]) == Figure(0.5, 0.5, 3.0)


@pytest.mark.parametrize(("above", "below"), [([], []), ([1.0], []), ([1.0], [0.0])])
def test_there_is_no_ratio_without_a_value_on_both_sides(above: list[float], below: list[float]) -> None:
    assert results.ratio_of_medians(above, below) is None


@pytest.mark.parametrize(
    ("bound", "target", "state"),
    [
        (Bound.AT_MOST, 0.5, State.PASS),
        (Bound.AT_MOST, 0.49, State.SHORT),
        (Bound.AT_LEAST, 0.5, State.PASS),
        (Bound.AT_LEAST, 0.51, State.SHORT),
    ],
)
def test_a_line_is_judged_against_its_bound(bound: Bound, target: float, state: State) -> None:
    found = _results("s", "c", "m", {"penstock": [1.0, 1.0], "kafka": [2.0, 2.0]})
    verdict = requirements.judge(Requirement("g", "s", "c", "m", bound, target), {"s": found})
    assert (verdict.state, verdict.subject, verdict.base) == (state, 1.0, 2.0)


@pytest.mark.parametrize(("share", "state"), [(0.95, State.CLIENT), (0.5, State.SHORT)])
def test_low_throughput_is_excused_only_where_the_client_was_busy(share: float, state: State) -> None:
    found = _results("s", "c", "m", {"penstock": [1.0], "kafka": [2.0]}, client_share_of_core=share)
    line = Requirement("g", "s", "c", "m", Bound.AT_LEAST, 1.0, unless_client_limits=True)
    assert requirements.judge(line, {"s": found}).state is state


@pytest.mark.parametrize(
    ("target", "ours", "theirs", "state"),
    [
        (1.0, 0.95, 0.5, State.SHORT),
        (2.0, 0.95, 0.5, State.CLIENT),
        (2.0, 0.5, 0.95, State.SHORT),
    ],
)
def test_where_a_multiple_is_asked_for_the_client_on_our_side_decides(
    target: float, ours: float, theirs: float, state: State
) -> None:
    rows = [
        Row(case="c", lane="penstock", round=1, metrics={"m": 1.5, "client_share_of_core": ours}),
        Row(case="c", lane="kafka", round=1, metrics={"m": 2.0, "client_share_of_core": theirs}),
    ]
    line = Requirement("g", "s", "c", "m", Bound.AT_LEAST, target, unless_client_limits=True)
    assert requirements.judge(line, {"s": Results(_header("s"), rows)}).state is state


def test_what_was_not_measured_does_not_pass() -> None:
    line = Requirement("g", "s", "c", "m", Bound.AT_MOST, 1.0)
    assert requirements.judge(line, {}).state is State.MISSING
    other = _results("s", "another case", "m", {"penstock": [1.0], "kafka": [2.0]})
    assert requirements.judge(line, {"s": other}).state is State.MISSING


def test_an_interrupted_round_does_not_count() -> None:
    found = _results("s", "c", "m", {"penstock": [1.0, 1.0, 8.0], "kafka": [2.0, 2.0]})
    verdict = requirements.judge(Requirement("g", "s", "c", "m", Bound.AT_MOST, 0.5), {"s": found})
    assert verdict.figure == Figure(0.5, 0.5, 0.5)


def test_a_bound_without_a_base_is_absolute() -> None:
    found = _results("s", "c", "m", {"penstock": [70.0, 50.0, 55.0]})
    verdict = requirements.judge(Requirement("g", "s", "c", "m", Bound.AT_MOST, 60.0, base=None), {"s": found})
    assert (verdict.state, verdict.figure) == (State.PASS, Figure(55.0, 50.0, 70.0))


def test_rows_survive_the_file(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, _header("produce"))
    row = Row(case="c", lane="kafka", round=1, metrics={"m": 1.5})
    recorder.add(row)
    assert results.read_all(tmp_path)["produce"].rows == [row]


def test_a_file_that_is_no_results_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}\n")
    with pytest.raises(ValueError, match=r"odd\.json is not a results file"):
        results.read_all(tmp_path)


def _all_measured(value: float, base: float) -> dict[str, Results]:
    measured: dict[str, Results] = {}
    for line in requirements.ALL:
        found = measured.setdefault(line.suite, Results(_header(line.suite), []))
        for lane, number in ((line.subject, value), (line.base, base)):
            row = Row(case=line.case, lane=lane or "", round=0, metrics={line.metric: number})
            if lane is not None and row not in found.rows:
                found.rows.append(row)
    return measured


def test_the_report_is_good_only_when_every_line_is_measured_and_none_is_short() -> None:
    at_most = [line for line in requirements.ALL if line.bound is Bound.AT_MOST]
    measured = _all_measured(0.0, 1.0)
    text, good = report.render(measured, {})
    assert not good  # a throughput of zero misses the bound
    assert text.count("| **SHORT** |") == len(requirements.ALL) - len(at_most)
    assert report.render({}, {})[0].count("| not measured |") == len(requirements.ALL)


def test_every_required_line_is_told_in_the_report() -> None:
    text, _good = report.render(_all_measured(1.0, 1.0), {})
    for line in requirements.ALL:
        assert f"### {line.group}\n" in text
        assert f"| {line.name} | {line.bound.value} " in text
