"""docs/reference/operator.md lists exactly the existing metrics, flags, variables, conditions' reasons and Events."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import typer.main

import penstock_operator
from penstock_operator import main
from penstock_operator.brokers.connections import OVERRIDE
from penstock_operator.engine.lease import DURATION_S, RENEW_S
from penstock_operator.engine.metrics import OperatorMetrics

CODE = Path(penstock_operator.__file__).parent
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "operator.md").read_text()
WORD = "[A-Z][a-z]+(?:[A-Z][a-z]+)*"
ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)


def section(title: str) -> str:
    """Return the text from a heading to the next one of its rank or above."""
    head = re.search(rf"^(#+) {re.escape(title)}$", PAGE, re.MULTILINE)
    assert head is not None, f"the page has no section {title}"
    rest = PAGE[head.end() :]
    end = re.search(rf"^#{{1,{len(head[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end is not None else rest


def rows(title: str) -> list[list[str]]:
    """Return the cells of the section's tables, without their heads."""
    found = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(section(title))]
    return [cells for cells in found if cells[0].startswith("`")]


# Metrics


def test_metrics_are_those_that_are_told() -> None:
    metrics = OperatorMetrics()
    status = {"lag": 1, "lagSeconds": 2}
    body = {"metadata": {"name": "g", "namespace": "ns"}, "spec": {"clusterRef": {"name": "c"}}, "status": status}
    metrics.watch_groups(lambda: [body])
    conditions = [{"type": "StateStore", "status": "True", "reason": "Healthy"}]
    cluster = {
        "metadata": body["metadata"],
        "spec": {"etcd": {"snapshots": {}}},
        "status": {"conditions": conditions, "snapshots": {"lastTime": "2026-03-10T12:00:00Z"}},
    }
    metrics.watch_clusters(lambda: [cluster])
    metrics.watch_unhandled_errors(lambda: 0)
    metrics.record_write("patch", "topics")
    metrics.record_repairs("topics", 1)
    metrics.watch_queue(lambda kind: 0, lambda kind: 0)
    told = set()
    for metric in metrics.registry.collect():
        assert metric.samples, f"{metric.name} has no sample here: it would be left out"
        name = metric.name + ("_total" if metric.type == "counter" else "")
        labels = {label for sample in metric.samples for label in sample.labels if label != "le"}
        told.add((name, metric.type, frozenset(labels)))
    shown = {
        (cells[0].strip("`"), cells[1], frozenset(re.findall("`(.*?)`", cells[2])))
        for cells in rows("Health and metrics")
    }
    assert shown == told


# Flags and variables


def test_flags_have_their_variables_and_defaults() -> None:
    command = typer.main.get_command(main.app).commands["run"]  # type: ignore[attr-defined]
    known = {
        (option.opts[0], option.envvar or "", "" if option.default is None else str(option.default))
        for option in command.params
        if option.name != "help"
    }
    shown = {
        (flag.strip("`"), variable.strip("`"), "" if default.startswith(("empty", "the ")) else default.strip("`"))
        for flag, variable, default, _ in rows("Flags and environment")
        if flag.startswith("`--")
    }
    assert shown == known


def test_variables_that_are_read_without_a_flag_are_named() -> None:
    read = set()
    for path in CODE.rglob("*.py"):
        if "files" in path.parts:
            continue  # these files run in the pods of brokers
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and is_environment_get(node.func):
                name = node.args[0]
                read.add(name.value if isinstance(name, ast.Constant) else {"OVERRIDE": OVERRIDE}[ast.unparse(name)])
    assert read == {"KUBECONFIG", "KUBERNETES_SERVICE_HOST", OVERRIDE}
    # Kubernetes sets the API server's address in each pod.
    for name in read - {"KUBERNETES_SERVICE_HOST"}:
        assert f"`{name}`" in section("Flags and environment")


def is_environment_get(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(ast.Attribute(ast.Name("os"), "environ"), "get"):
            return True
    return False


def test_the_lease_is_as_it_is_said() -> None:
    text = section("How it works")
    assert f"lasts {DURATION_S} s" in text
    assert f"renewed every {RENEW_S:.0f} s" in text
    assert f"called `{main.LEASE_NAME}`" in text


# Reasons

CONDITIONS = {
    "Ready",
    "Healthy",
    "Progressing",
    "Scaled",
    "Rolled",
    "Storage",
    "Synced",
    "Certificates",
    "Authentication",
    "Authorization",
    "Quotas",
    "StateStore",
    "Reconciling",
    "Stalled",
    "Snapshots",
    "Restored",
}
OTHER_WORDS = {
    "True", "False", "Unknown", "Normal", "Warning",  # of conditions and Events
    "Cluster", "Topic", "ConsumerGroup", "User", "Delete", "Retain", "NodePort",  # of the resources
    "Dead", "Empty",  # of groups
    "Bound", "ConfigMap", "ContainerCreating", "Lost", "Pending", "PodInitializing", "PodScheduled",
    "Running", "Succeeded",  # of Kubernetes
    "Exists", "FailedCreate", "NoExecute", "NoSchedule", "StatefulSet", "SuccessfulCreate",
    "Reset", "Replay", "Restore",  # start of Events; a phase follows, such as Running
}  # fmt: skip
"""Strings in the code that look like reasons."""
ROOMS = {
    "Cluster": ("reconcile/cluster/*.py", "clusters/*.py"),
    "Topic": ("reconcile/topic/*.py", "topics/*.py"),
    "ConsumerGroup": ("reconcile/group/*.py", "groups/*.py"),
    "User": ("reconcile/user/*.py", "users/*.py"),
}
SHARED = ("reconcile/invalid_status.py", "engine/invalid_objects.py", "ports/brokers.py")


def said_by(*patterns: str) -> set[str]:
    """Return the strings in the code that can be reasons, without annotations and `__all__`."""
    paths = [path for pattern in patterns for path in CODE.glob(pattern)]
    return set().union(*map(words_of, paths)) - OTHER_WORDS


@cache
def words_of(path: Path) -> frozenset[str]:
    found: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            continue
        found |= {
            node.value
            for node in ast.walk(statement)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(WORD, node.value)
        }
    return frozenset(found)


def shown_in(text: str) -> set[str]:
    return set(re.findall(f"`({WORD})`", text))


def is_composed(word: str, said: set[str]) -> bool:
    """Return whether it is the Event of a condition's reason or of the phase of a reset or replay."""
    heads = [*CONDITIONS, "Reset", "Replay", "Restore"]
    return any(word.startswith(head) and word.removeprefix(head) in said for head in heads)


@pytest.mark.parametrize("kind", ROOMS)
def test_each_reason_is_in_its_kinds_section_or_among_the_events(kind: str) -> None:
    shown = shown_in(section(kind)) | shown_in(section("Events"))
    assert said_by(*ROOMS[kind]) - CONDITIONS - shown == set()


@pytest.mark.parametrize("kind", ROOMS)
def test_each_reason_of_a_kinds_section_is_in_the_code(kind: str) -> None:
    assert shown_in(section(kind)) - said_by(*ROOMS[kind], "ports/brokers.py") - OTHER_WORDS == set()


def test_each_event_is_in_the_code() -> None:
    said = said_by(*SHARED, *(pattern for patterns in ROOMS.values() for pattern in patterns))
    assert {word for word in shown_in(section("Events")) if word not in said and not is_composed(word, said)} == set()


def test_what_is_said_of_all_kinds_is_on_the_page() -> None:
    assert said_by(*SHARED) - CONDITIONS - shown_in(section("Conditions")) - shown_in(section("Events")) == set()
