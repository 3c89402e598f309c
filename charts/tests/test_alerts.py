"""Each alert of the chart fires on the series of its fault and is silent on those of a healthy cluster, by promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from penstock_charts import render
from penstock_charts.alert_cases import CASES, HEALTHY
from penstock_charts.prometheus import ROOT, AlertCase, alert_rules, find_promtool, run_promtool

ALERTS = sorted(CASES)
METRIC = re.compile(r"^\| `(penstock_\w+)` \| \w+ \| (.*?) \|", re.MULTILINE)
TARGET_LABELS = {"namespace", "pod", "penstock_io_cluster"}
"""Labels that Prometheus adds to each series of a scraped pod, and the label of `targetLabels`."""


@pytest.fixture(scope="session")
def promtool() -> str:
    found = find_promtool()
    if found is None:
        pytest.fail("no promtool on the PATH: run tools/install_prometheus.sh, or `make chart`, which does")
    return found


@pytest.fixture(scope="session")
def rules(helm: str, chart: Path) -> Mapping[str, Mapping[str, Any]]:
    return alert_rules(render(helm, chart, "--set", "monitoring.prometheusRule.enabled=true"))


def known_series() -> dict[str, set[str]]:
    """Return the labels of each metric, as the reference pages list them."""
    pages = [ROOT / "docs" / "reference" / name for name in ("metrics.md", "operator.md")]
    found = [match for page in pages for match in METRIC.findall(page.read_text(encoding="utf-8"))]
    return {name: set(re.findall("`(.*?)`", labels)) for name, labels in found}


def test_there_are_cases_for_each_alert(rules: Mapping[str, Any]) -> None:
    assert sorted(rules) == ALERTS
    for alert, cases in CASES.items():
        assert any(case.fires for case in cases), f"{alert} fires in none"
        assert any(not case.fires for case in cases), f"{alert} is silent in none"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_on_its_fault_and_is_silent_otherwise(
    promtool: str, rules: Mapping[str, Mapping[str, Any]], alert: str, tmp_path: Path
) -> None:
    failure = run_promtool(promtool, tmp_path, rules[alert], CASES[alert])
    assert not failure, failure


@pytest.mark.parametrize("alert", ALERTS)
def test_an_expression_that_is_never_true_or_always_fails_the_cases(
    promtool: str, rules: Mapping[str, Mapping[str, Any]], alert: str, tmp_path: Path
) -> None:
    never = {**rules[alert], "expr": "vector(1) > 2"}
    assert run_promtool(promtool, tmp_path, never, CASES[alert])
    always = {**rules[alert], "expr": "vector(1)", "for": "0s"}
    assert run_promtool(promtool, tmp_path, always, [case for case in CASES[alert] if not case.fires])


@pytest.mark.parametrize("alert", ALERTS)
def test_the_series_of_the_cases_are_those_that_the_reference_lists(alert: str) -> None:
    known = known_series()
    for case in CASES[alert]:
        for text in case.series:
            name, _, labels = text.partition("{")
            assert name in known
            assert set(re.findall(r'(\w+)="', labels)) <= known[name] | TARGET_LABELS, text


@pytest.mark.parametrize("alert", ALERTS)
def test_a_roll_a_scale_and_a_drain_fire_no_alert(
    promtool: str, rules: Mapping[str, Mapping[str, Any]], alert: str, tmp_path: Path
) -> None:
    cases: Sequence[AlertCase] = [AlertCase(series, at) for series in HEALTHY.values() for at in ("4m", "10m", "90m")]
    failure = run_promtool(promtool, tmp_path, rules[alert], cases)
    assert not failure, failure


def test_promtool_accepts_the_rules(promtool: str, rules: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(msgspec.yaml.encode({"groups": [{"name": "penstock", "rules": list(rules.values())}]}))
    done = subprocess.run([promtool, "check", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
