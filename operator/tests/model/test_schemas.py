"""The CRDs in crds/, the models and the reference page agree."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from crds.random_specs import made_of, resources
from hypothesis import given, settings
from model.structural import Schema, defaulted, problems, pruned
from msgspec import inspect

from penstock_operator.model.cluster import Cluster, StorageSpec
from penstock_operator.model.common import INITIAL_STATUS, PLURALS
from penstock_operator.model.fields import unwrapped
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.model.parse import Resource, as_object, parse
from penstock_operator.model.settings import OWNED_BY_OPERATOR, broker_settings, group_settings, topic_settings
from penstock_operator.model.topic import Topic
from penstock_operator.model.user import User

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "resources.md").read_text()
KINDS: dict[str, type[Resource]] = {"Cluster": Cluster, "Topic": Topic, "ConsumerGroup": ConsumerGroup, "User": User}
SMALLEST: dict[str, dict[str, Any]] = {
    "Cluster": {"etcd": {"endpoints": ["http://etcd:2379"]}},
    "Topic": {"clusterRef": {"name": "main"}},
    "ConsumerGroup": {"clusterRef": {"name": "main"}},
    "User": {"clusterRef": {"name": "main"}},
}

every_kind = pytest.mark.parametrize("kind", list(KINDS))


@cache
def definition(kind: Any) -> Schema:
    found: Schema = yaml.safe_load((ROOT / "crds" / f"penstock.io_{PLURALS[kind]}.yaml").read_text())
    return found


def version(kind: str) -> Schema:
    found: Schema = definition(kind)["spec"]["versions"][0]
    return found


def schema(kind: str) -> Schema:
    found: Schema = version(kind)["schema"]["openAPIV3Schema"]
    return found


def object_of(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "spec": spec}


def described(type_: inspect.Type, path: str) -> Iterator[tuple[str, inspect.Field]]:
    inner, _, _ = unwrapped(type_)
    if isinstance(inner, inspect.VarTupleType):
        yield from described(inner.item_type, f"{path}[]")
    elif isinstance(inner, inspect.StructType):
        for field in inner.fields:
            yield f"{path}.{field.encode_name}", field
            yield from described(field.type, f"{path}.{field.encode_name}")


def fields_of_model(kind: str) -> dict[str, inspect.Field]:
    found = dict(described(inspect.type_info(KINDS[kind]), ""))
    return {path: field for path, field in found.items() if not path.startswith(".metadata")}


def fields_of_schema(part: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    for name, inner in part.get("properties", {}).items():
        yield f"{path}.{name}", inner
        yield from fields_of_schema(inner, f"{path}.{name}")
    if "items" in part:
        yield from fields_of_schema(part["items"], f"{path}[]")


def own_fields_of_schema(kind: str) -> dict[str, Schema]:
    """Return the fields without those of Kubernetes' own types: metadata, pod scheduling, requests and limits."""
    foreign = re.compile(r"^[.](apiVersion|kind|metadata)$|(resources|tolerations\[\]|Constraints\[\]|Secrets\[\])[.]")
    return {path: part for path, part in fields_of_schema(schema(kind)) if not foreign.search(path)}


@every_kind
def test_each_field_of_the_model_is_in_the_schema_and_the_other_way_round(kind: str) -> None:
    assert set(fields_of_model(kind)) == set(own_fields_of_schema(kind))


@every_kind
def test_each_field_says_what_it_is_for_in_the_schema_and_on_the_page(kind: str) -> None:
    for path, part in own_fields_of_schema(kind).items():
        assert part.get("description", "").endswith("."), path
        if path.count(".") > 1:
            name = path.rpartition(".")[2]
            meaning = part["description"].replace("|", "\\|")
            assert re.search(rf"\| `{name}` \| .* \| {re.escape(meaning)} \|", PAGE), path


@every_kind
def test_kubectl_explain_describes_each_field_also_of_pods(kind: str) -> None:
    def undescribed(part: Schema, path: str) -> Iterator[str]:
        for name, inner in part.get("properties", {}).items():
            if not inner.get("description", "").endswith("."):
                yield f"{path}.{name}"
            yield from undescribed(inner, f"{path}.{name}")
        for each in (part.get("items"), part.get("additionalProperties")):
            if isinstance(each, dict):
                yield from undescribed(each, f"{path}[]")

    parts = schema(kind)["properties"]
    assert [path for name in ("spec", "status") for path in undescribed(parts[name], name)] == []


def test_each_kind_of_the_page_has_its_example_in_full() -> None:
    for kind in KINDS:
        example = (ROOT / "docs" / "reference" / "examples" / f"{kind.lower()}.yaml").read_text()
        assert f"```yaml\n{example}```" in PAGE
        read = yaml.safe_load(example)
        assert parse(read["kind"], read | {"metadata": read["metadata"] | {"namespace": "a", "uid": "b"}})


@pytest.mark.integration
def test_the_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "tools" / "generate_crds.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@every_kind
def test_an_object_of_the_schemas_defaults_is_one_of_the_models_defaults(kind: Any) -> None:
    spec = defaulted(SMALLEST[kind], schema(kind)["properties"]["spec"])
    assert parse(kind, object_of(kind, spec)).spec == parse(kind, object_of(kind, SMALLEST[kind])).spec


def test_the_defaults_of_volumes_inside_of_what_is_given_are_the_models() -> None:
    given_: dict[str, Any] = {
        "etcd": {"sidecar": {"image": "etcd", "storage": {"className": "a"}}},
        "brokers": {"storage": {}, "replicas": 1},
        "external": {"type": "NodePort"},
    }
    stored = defaulted(given_, schema("Cluster")["properties"]["spec"])
    assert stored["etcd"]["sidecar"]["storage"] == {"className": "a", "size": "2Gi"}
    assert stored["brokers"]["storage"] == {"size": "10Gi"}
    assert parse("Cluster", object_of("Cluster", stored)).spec == parse("Cluster", object_of("Cluster", given_)).spec


def test_what_the_brokers_decide_has_no_default() -> None:
    spec = schema("Topic")["properties"]["spec"]["properties"]
    assert "default" not in spec["partitions"]
    assert "default" not in spec["replicas"]
    assert defaulted(SMALLEST["Topic"], schema("Topic")["properties"]["spec"]).keys() == {
        "clusterRef", "deletionPolicy", "paused",
    }  # fmt: skip


@every_kind
def test_the_fields_of_a_status_have_no_defaults_since_it_says_what_is(kind: str) -> None:
    for path, part in fields_of_schema(schema(kind)["properties"]["status"]):
        assert "default" not in part, path


@pytest.mark.slow
@settings(deadline=None)
@given(resources())
def test_random_specs_survive_the_schema_and_come_back_the_same(resource: Resource) -> None:
    kind = type(resource).__name__
    written = as_object(resource)
    spec = schema(kind)["properties"]["spec"]
    assert list(problems(written["spec"], spec)) == []
    assert pruned(written["spec"], spec) == written["spec"]
    stored = defaulted(pruned(written["spec"], spec), spec)
    assert list(problems(stored, spec)) == []
    assert parse(kind, object_of(kind, stored)).spec == resource.spec  # type: ignore[call-overload]


@pytest.mark.slow
@settings(deadline=None)
@given(resources())
def test_fields_that_nobody_knows_are_pruned_by_the_schema_and_ignored_by_the_model(resource: Resource) -> None:
    kind = type(resource).__name__
    written = as_object(resource)
    more = {**written["spec"], "unheardOf": {"a": [1]}}
    assert pruned(more, schema(kind)["properties"]["spec"]) == written["spec"]
    assert parse(kind, object_of(kind, more)).spec == resource.spec  # type: ignore[call-overload]


@every_kind
def test_each_column_shows_a_field_that_there_is(kind: str) -> None:
    known = set(fields_of_model(kind)) | {".metadata.creationTimestamp", ".status.conditions"}
    for column in version(kind)["additionalPrinterColumns"]:
        assert re.sub(r"\[.*", "", column["jsonPath"]) in known, column["name"]


def test_the_scale_subresource_points_at_fields_that_there_are() -> None:
    scale = version("Cluster")["subresources"]["scale"]
    assert set(scale.values()) <= set(fields_of_model("Cluster"))
    for other in ("Topic", "ConsumerGroup", "User"):
        assert version(other)["subresources"] == {"status": {}}


@every_kind
def test_an_object_without_a_status_is_not_ready_and_says_what_to_check(kind: str) -> None:
    status = schema(kind)["properties"]["status"]
    assert status["default"] == INITIAL_STATUS
    assert set(INITIAL_STATUS) <= set(status["properties"])
    (condition,) = INITIAL_STATUS["conditions"]
    assert set(status["properties"]["conditions"]["items"]["required"]) <= set(condition)
    assert (condition["type"], condition["status"]) == ("Ready", "Unknown")


@every_kind
def test_names_do_not_clash_with_those_of_kubernetes(kind: Any) -> None:
    names = definition(kind)["spec"]["names"]
    core = {"cm", "cs", "ep", "ev", "no", "ns", "po", "pv", "pvc", "rc", "quota", "sa", "svc", "crd", "ds", "deploy",
            "rs", "sts", "hpa", "cj", "csr", "ing", "netpol", "pdb", "pc", "sc", "limits", "psp", "va"}  # fmt: skip
    assert not core & set(names["shortNames"])
    assert names["categories"] == ["penstock"]
    assert KINDS[kind].kind_info.kind == kind == names["kind"]


@every_kind
def test_every_list_text_and_map_that_a_user_gives_is_bounded(kind: str) -> None:
    """The API server otherwise rejects the rules about them as too expensive."""

    def unbounded(part: Schema, path: str) -> Iterator[str]:
        bound = {"array": "maxItems", "string": "maxLength"}.get(part.get("type", ""))
        if "additionalProperties" in part:
            bound = "maxProperties"
            yield from unbounded(part["additionalProperties"], f"{path}{{}}")
        if bound and bound not in part and "enum" not in part:
            yield path
        for name, inner in part.get("properties", {}).items():
            yield from unbounded(inner, f"{path}.{name}")
        if "items" in part:
            yield from unbounded(part["items"], f"{path}[]")

    assert list(unbounded(schema(kind)["properties"]["spec"], "spec")) == []


def rules_of_config(kind: str) -> str:
    return yaml.safe_dump(schema(kind)["properties"]["spec"]["properties"]["config"], width=10_000)


def test_the_rules_about_settings_know_each_setting_that_the_brokers_know() -> None:
    settings = {"Topic": topic_settings(), "Cluster": broker_settings(), "ConsumerGroup": group_settings()}
    for kind, known in settings.items():
        rules = rules_of_config(kind)
        for name in known:
            assert f"'{name}'" in rules, name
    for name in OWNED_BY_OPERATOR:
        assert name not in broker_settings()


def test_a_volume_is_described_the_same_wherever_it_is() -> None:
    assert made_of(Cluster, SMALLEST["Cluster"]).spec.brokers.storage == StorageSpec()  # type: ignore[union-attr]
