"""CRDs are updated, and never downgraded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_operator.crds import (
    VERSION_ANNOTATION,
    BadDefinition,
    main,
    read_definitions,
    update,
    version_of,
    wait_until_served,
)
from penstock_operator.ports.kube import KubeResource, Object

ROOT = Path(__file__).resolve().parents[3]


def definition(version: str | None, *, served: bool = True) -> Object:
    metadata: Object = {"name": "topics.penstock.io"}
    if version is not None:
        metadata["annotations"] = {VERSION_ANNOTATION: version}
    status = {"conditions": [{"type": "Established", "status": "True" if served else "False"}]}
    return {"kind": "CustomResourceDefinition", "metadata": metadata, "status": status}


class Server:
    """Holds one CRD; serves it after `served_after` requests."""

    def __init__(self, current: Object | None, served_after: int = 0) -> None:
        self.current, self.applied = current, 0
        self._looks_left = served_after

    async def get(self, resource: KubeResource, namespace: str, name: str) -> Object | None:
        assert (resource.plural, namespace, name) == ("customresourcedefinitions", "", "topics.penstock.io")
        self._looks_left -= 1
        return self.current if self._looks_left < 0 else None

    async def apply(self, resource: KubeResource, namespace: str, body: Object) -> Object:
        self.current, self.applied = body, self.applied + 1
        return body


@pytest.mark.parametrize(
    ("current", "shipped", "applied"),
    [
        (None, "0.1.0", True),
        (definition(None), "0.1.0", True),
        (definition("nonsense"), "0.1.0", True),
        (definition("0.1.0"), "0.1.0", True),
        (definition("0.9.0"), "0.10.0", True),
        (definition("0.10.0"), "0.9.0", False),
        (definition("1.0"), "0.99.99", False),
        (definition("0.1.1"), "0.1", False),
    ],
)
async def test_what_is_newer_is_left_and_everything_else_replaced(current: Any, shipped: str, applied: bool) -> None:
    server, lines = Server(current), []
    await update([definition(shipped)], server, lines.append)
    assert server.applied == applied
    assert server.current is not None
    assert version_of(server.current) == max(version_of(current) if current else (), version_of(definition(shipped)))
    (line,) = lines
    assert ("unchanged" in line) == (not applied)


async def test_it_waits_until_the_api_server_serves_them_and_names_those_that_it_does_not() -> None:
    assert await wait_until_served([definition("1")], Server(definition("1"), served_after=2), 30.0) == []
    never = Server(definition("1", served=False))
    assert await wait_until_served([definition("1")], never, 0.3) == ["topics.penstock.io"]


def test_the_crds_of_this_tree_are_all_there_with_their_version() -> None:
    names = {d["metadata"]["name"] for d in read_definitions(ROOT / "crds")}
    assert names == {f"{plural}.penstock.io" for plural in ("clusters", "topics", "consumergroups", "users")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: ConfigMap", "does not contain a CustomResourceDefinition"),
        ("{", "is not valid YAML"),
        ("kind: CustomResourceDefinition\nmetadata: {name: a}", f"has no annotation {VERSION_ANNOTATION}"),
        (None, r"contains no \*.yaml"),
    ],
)
def test_files_that_are_no_crds_are_refused_by_name(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(BadDefinition, match=words):
        read_definitions(tmp_path)


def test_the_command_says_how_it_is_used_and_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err
