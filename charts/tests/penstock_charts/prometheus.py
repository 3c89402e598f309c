"""The rules of the chart in Prometheus' own tools: series that fire an alert, and series that leave it silent."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[3]
UNPACKED = ROOT / ".cache" / "prometheus" / "usr" / "bin"
"""Where tools/install_prometheus.sh unpacks Debian's package."""


@dataclass(frozen=True, slots=True)
class AlertCase:
    """Series, one value a minute in promtool's notation, and the alerts that fire at a time."""

    series: Mapping[str, str]
    at: str
    fires: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of each alert that fires, by its summary; empty if the alert is silent."""


def find_promtool() -> str | None:
    """Return the promtool on the PATH, or the one that tools/install_prometheus.sh has unpacked."""
    unpacked = UNPACKED / "promtool"
    return shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)


def alert_rules(documents: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the alerts of the rendered PrometheusRule by name."""
    (found,) = [document for document in documents if document["kind"] == "PrometheusRule"]
    return {rule["alert"]: rule for group in found["spec"]["groups"] for rule in group["rules"]}


def unit_tests(rule: Mapping[str, Any], cases: Sequence[AlertCase]) -> dict[str, Any]:
    """Return a file of `promtool test rules` with the cases of a rule, whose file is rules.yaml beside it."""
    described = rule["annotations"]["description"]
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": text, "values": values} for text, values in case.series.items()],
                "alert_rule_test": [
                    {
                        "eval_time": case.at,
                        "alertname": rule["alert"],
                        "exp_alerts": [
                            {
                                "exp_labels": {**rule["labels"], **labels},
                                "exp_annotations": {"summary": summary, "description": described},
                            }
                            for summary, labels in case.fires.items()
                        ],
                    }
                ],
            }
            for case in cases
        ],
    }


def run_promtool(promtool: str, folder: Path, rule: Mapping[str, Any], cases: Sequence[AlertCase]) -> str:
    """Run the cases of a rule. Returns promtool's output if one of them fails, otherwise ""."""
    rules = {"groups": [{"name": "penstock", "rules": [rule]}]}
    (folder / "rules.yaml").write_bytes(msgspec.yaml.encode(rules))
    (folder / "tests.yaml").write_bytes(msgspec.yaml.encode(unit_tests(rule, cases)))
    command = [promtool, "test", "rules", str(folder / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr if done.returncode else ""
