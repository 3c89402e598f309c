"""The rendered chart: golden files of its variants, and properties of each of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from penstock_charts import Document, closed, free_texts, missing, other_than_text, pods, refusal, render

HERE = Path(__file__).parent
AUTHORIZER = {"authorizer.class.name": "StandardAuthorizer"}
VARIANTS = sorted(path.stem for path in (HERE / "variants").glob("*.yaml"))


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def documents(helm: str, chart: Path, variant: str) -> list[Document]:
    return render(helm, chart, "--values", str(HERE / "variants" / f"{variant}.yaml"))


def test_each_variant_renders_as_its_golden_file(documents: list[Document], variant: str, should_update: bool) -> None:
    golden = HERE / "golden" / f"{variant}.yaml"
    text = "---\n".join(msgspec.yaml.encode(document).decode() for document in documents)
    if should_update:
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "on purpose? make chart ARGS=--update, and look"


def test_every_variant_passes_helm_lint(helm: str, chart: Path, variant: str) -> None:
    command = [helm, "lint", "--strict", str(chart), "--values", str(HERE / "variants" / f"{variant}.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_pod_keeps_to_the_restricted_profile_and_bounds_its_memory(documents: list[Document]) -> None:
    assert pods(documents)
    for name, pod in pods(documents):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] == 10001, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        for container in pod["containers"]:
            inner = container["securityContext"]
            assert inner == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "memory" in container["resources"]["limits"], name
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        for volume in pod.get("volumes", ()):
            assert set(volume) - {"name"} <= {"emptyDir", "secret", "configMap"}, name


def test_only_the_operator_and_the_hook_have_tokens_of_the_api_server(documents: list[Document]) -> None:
    for name, pod in pods(documents):
        if not name.endswith(("-operator", "-crds")):
            assert pod["automountServiceAccountToken"] is False, name


def test_labels_never_change_in_what_selects_pods(documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] in ("Deployment", "StatefulSet"):
            selected = document["spec"]["selector"]["matchLabels"]
            assert set(selected) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}
            assert selected.items() <= document["spec"]["template"]["metadata"]["labels"].items()


def test_no_object_asks_for_rights_in_the_whole_cluster_where_the_values_say_so(helm: str, chart: Path) -> None:
    documents = render(helm, chart, "--set", "rbac.nodes=false,crds.upgrade=false")
    assert not [d["metadata"]["name"] for d in documents if d["kind"].startswith("ClusterRole")]


def test_no_role_has_wildcards_or_enumerates_secrets(documents: list[Document]) -> None:
    for document in documents:
        for rule in document.get("rules") or ():
            assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"], document["metadata"]["name"]
            if "secrets" in rule["resources"]:
                assert (document["kind"], rule["resources"]) == ("Role", ["secrets"])
                assert set(rule["verbs"]) == {"get", "create", "patch"}
            assert not [r for r in rule["resources"] if r == "persistentvolumeclaims" and "delete" in rule["verbs"]]


def test_numbers_and_booleans_of_the_config_become_the_text_that_was_meant(helm: str, chart: Path) -> None:
    documents = render(helm, chart, "--values", str(HERE / "variants" / "external-tls-wide.yaml"))
    (cluster,) = [d for d in documents if d["kind"] == "Cluster"]
    assert cluster["spec"]["config"] == {
        "num.partitions": "6",
        "log.retention.hours": "48",
        "auto.create.topics.enable": "false",
        "log.retention.bytes": "107374182400",
        "compression.type": "producer",
    }


@pytest.mark.parametrize("mode", ["companion", "sidecar"])
@pytest.mark.parametrize("name", ["123", "true", "on", "null", "1e3", "a.b"])
def test_names_that_yaml_takes_for_something_else_stay_text(helm: str, chart: Path, name: str, mode: str) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    values = msgspec.yaml.decode((chart / "values.yaml").read_text())
    texts = list(free_texts(schema, values, schema, "123"))
    assert len(texts) > 15
    assert {"nameOverride", "cluster.brokers.storage.size", "serviceAccount.name"} <= set(texts)

    def kinds(namespace: str, release: str, word: str) -> tuple[list[Document], dict[str, set[str]]]:
        said = ",".join(f"{path}={'12Gi' if path.endswith('size') and word == 'abc' else word}" for path in texts)
        said += f",operator.namespaces[0]=other,operator.namespaces[1]={word},imagePullSecrets[0].name={word}"
        said += f",operator.podLabels.a={word},cluster.config.a={word}"
        on = ["monitoring.serviceMonitor", "monitoring.prometheusRule", "monitoring.dashboard"]
        options = ["--set", ",".join(f"{each}.enabled=true" for each in on), "--set", f"etcd.mode={mode}"]
        if mode == "sidecar":
            said += ",etcd.companion.tlsSecret=,etcd.tls.clientSecret="
        documents = render(helm, chart, *options, "--set-string", said, "--namespace", namespace, name=release)
        found: dict[str, set[str]] = {}
        for document in documents:
            found.setdefault(document["kind"], set()).update(other_than_text(document))
        return documents, found

    _, usual = kinds("queue", "penstock", "abc")
    documents, found = kinds("2026", name, "123")
    assert found == usual
    for document in documents:
        if document["kind"] in ("Service", "Cluster"):
            assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"]), "Kubernetes takes no other"


def test_a_name_that_is_cut_short_is_still_a_name(helm: str, chart: Path) -> None:
    documents = render(helm, chart, "--set", f"nameOverride={'b' * 38}--c", name=f"{'a' * 38}--c")
    names = {d["metadata"]["name"] for d in documents if d["kind"] in ("Cluster", "Deployment")}
    assert names == {"a" * 38, f"{'a' * 38}-operator"}
    labels = [d["metadata"]["labels"]["app.kubernetes.io/name"] for d in documents if d["kind"] == "Deployment"]
    assert labels == ["b" * 38]


def test_no_two_releases_have_names_in_the_whole_cluster_in_common(helm: str, chart: Path) -> None:
    def wide(namespace: str, name: str) -> set[str]:
        documents = render(helm, chart, "--set", "operator.clusterWide=true", "--namespace", namespace, name=name)
        return {d["metadata"]["name"] for d in documents if d["kind"].startswith("ClusterRole")}

    assert len(wide("a", "b-c")) == 3
    assert not wide("a", "b-c") & wide("a-b", "c")


def test_what_is_set_to_nothing_is_not_what_is_not_set(helm: str, chart: Path) -> None:
    def brokers(*options: str) -> Document:
        (cluster,) = [d for d in render(helm, chart, *options) if d["kind"] == "Cluster"]
        return dict(cluster["spec"]["brokers"])

    assert not {"affinity", "topologySpreadConstraints"} & set(brokers())
    chosen = {"affinity": {}, "topologySpreadConstraints": []}
    options = [f"cluster.brokers.{name}={json.dumps(value)}" for name, value in chosen.items()]
    found = brokers("--set-json", options[0], "--set-json", options[1])
    assert {name: found.get(name) for name in chosen} == chosen


def test_the_default_is_secured_and_one_value_allows_plain_text(helm: str, chart: Path) -> None:
    def spec(*options: str) -> Document:
        (cluster,) = [d for d in render(helm, chart, *options) if d["kind"] == "Cluster"]
        return dict(cluster["spec"])

    secured = spec()
    assert (secured["listeners"], secured["networkPolicy"]) == ([{"name": "clients", "port": 9093}], True)
    assert secured["config"] == AUTHORIZER
    plain = spec("--set", "cluster.allowPlaintext=true")
    assert not {"listeners", "networkPolicy", "config"} & plain.keys()
    assert plain["port"] == 9092
    chosen = spec("--set-json", 'cluster.config={"authorizer.class.name":""}')
    assert chosen["config"] == {"authorizer.class.name": ""}


def test_etcd_and_brokers_share_a_certificate_of_the_operator_by_default(helm: str, chart: Path) -> None:
    def parts(*options: str) -> tuple[Document, Document]:
        documents = render(helm, chart, *options)
        (cluster,) = [d for d in documents if d["kind"] == "Cluster"]
        (members,) = [d for d in documents if d["kind"] == "StatefulSet"]
        return cluster["spec"]["etcd"], members["spec"]["template"]["spec"]

    etcd, pod = parts()
    hosts = [f"penstock-etcd{suffix}.queue.svc" for suffix in ("", "-0", "-1", "-2", "-3", "-4")]
    assert etcd["certificate"] == {"secretName": "penstock-etcd-tls", "hosts": hosts}
    assert etcd["endpoints"] == [f"https://{host}:2379" for host in hosts[1:4]]
    assert pod["volumes"][0]["secret"]["secretName"] == "penstock-etcd-tls"
    assert "--client-cert-auth=true" in pod["containers"][0]["args"]
    assert "--peer-client-cert-auth=true" in pod["containers"][0]["args"]
    for option in ("cluster.allowPlaintext=true", "etcd.companion.allowPlaintext=true"):
        etcd, pod = parts("--set", option)
        assert "certificate" not in etcd
        assert etcd["endpoints"][0].startswith("http://")
        assert not pod.get("volumes")
    own = "etcd.companion.tlsSecret=server,etcd.tls.clientSecret=client"
    etcd, pod = parts("--set", own)
    assert ("certificate" in etcd, etcd["tlsSecret"]) == (False, "client")
    assert pod["volumes"][0]["secret"]["secretName"] == "server"


def test_the_test_has_a_user_of_its_own_where_clients_need_one(helm: str, chart: Path) -> None:
    def test_of(*options: str) -> tuple[set[str], Document]:
        documents = [
            d for d in render(helm, chart, *options) if "helm.sh/hook" in str(d["metadata"].get("annotations"))
        ]
        tests = [d for d in documents if d["metadata"]["annotations"]["helm.sh/hook"] == "test"]
        (pod,) = [d for d in tests if d["kind"] == "Pod"]
        return {d["kind"] for d in tests}, pod["spec"]

    kinds, pod = test_of()
    assert kinds == {"Pod", "User"}
    assert [v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v] == ["penstock-test"]
    kinds, pod = test_of("--set", "cluster.allowPlaintext=true")
    assert kinds == {"Pod"}
    assert not [v for v in pod["volumes"] if "secret" in v]
    only = '[{"name":"a","port":9095,"authentication":"tls"},{"name":"b","port":9094,"type":"nodeport"}]'
    documents = render(helm, chart, "--set-json", f"cluster.listeners={only}")
    assert not [d for d in documents if d["metadata"]["name"] == "penstock-test"]


def test_an_upgrade_of_the_chart_alone_restarts_no_etcd(helm: str, chart: Path, tmp_path: Path) -> None:
    import shutil

    newer = tmp_path / "penstock"
    shutil.copytree(chart, newer)
    about = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub(r"^(version|appVersion): .*", r"\1: 9.9.9", about, flags=re.MULTILINE))
    old, new = (next(d for d in render(helm, c) if d["kind"] == "StatefulSet") for c in (chart, newer))
    assert old["metadata"] != new["metadata"]
    assert old["spec"] == new["spec"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("cluster.brokers.replica=3", "additional properties 'replica' not allowed"),
        ("etcd.companion.replicas=2", "value must be one of 1, 3, 5"),
        ("etcd.mode=extern", "value must be one of"),
        ("etcd.mode=external", "etcd.mode=external requires etcd.external.endpoints"),
        ("etcd.mode=sidecar,cluster.brokers.replicas=2", "requires 1 or at least 3 brokers"),
        ("etcd.restore.snapshot=a", "etcd.restore requires etcd.mode=companion and etcd.snapshots"),
        ("etcd.companion.tlsSecret=a", "set etcd.tls.clientSecret for the brokers"),
        ("etcd.tls.clientSecret=a", "set etcd.companion.tlsSecret, too"),
        ("cluster.external.host=a", "missing property 'type'"),
        ("cluster.external.type=NodePort", "cluster.external is in plain text"),
        ("cluster.listeners[0].name=a,cluster.listeners[0].tls=false", 'listener "a" has tls: false'),
        ("cluster.listeners[0].name=a,cluster.listeners[0].authentication=none", "has authentication: none"),
        ("cluster.listeners[0].name=a,cluster.listeners[0].tls=false", "set cluster.allowPlaintext=true to allow it"),
        ("cluster.brokers.storage.size=ten", "does not match pattern"),
        ("operator.replicas=0", "minimum: got 0, want 1"),
        ("fullnameOverride=2fast", "does not match pattern"),
        ("cluster.name=2fast", "does not match pattern"),
        ("cluster.config.a.b=c", "got object, want boolean or number or string"),
        ("monitoring.prometheusRule.diskFreeRatio=2", "exclusiveMaximum"),
        ("cluster=null", "missing property 'cluster'"),
        ("cluster.brokers=null", "missing property 'brokers'"),
    ],
)
def test_wrong_values_are_refused_with_words_that_help(helm: str, chart: Path, options: str, words: str) -> None:
    assert words in refusal(helm, chart, "--set", options)


NUMBERS = [1, -1, 0.25, 1_000_000, 2**53 - 1, 1 - 2**53]
LARGE = [2**53, -(2**53), 2**63 - 1, -(2**63), 10**25]


@pytest.fixture
def values(tmp_path: Path) -> Callable[[Document], str]:
    """Return a function that writes a file of values and returns its path."""

    def write(values: Document) -> str:
        path = tmp_path / "values.yaml"
        path.write_bytes(msgspec.yaml.encode(values))
        return str(path)

    return write


def test_numbers_of_a_values_file_arrive_as_they_were_written(
    helm: str, chart: Path, values: Callable[[Document], str]
) -> None:
    config: Document = {f"n{i}": number for i, number in enumerate(NUMBERS)}
    config |= {f"q{i}": str(number) for i, number in enumerate(LARGE)}
    file = values({"cluster": {"config": config, "moving": {"throttleBytesPerSecond": str(2**63 - 1)}}})
    (cluster,) = [d for d in render(helm, chart, "--values", file) if d["kind"] == "Cluster"]
    assert cluster["spec"]["config"] == AUTHORIZER | {name: str(number) for name, number in config.items()}
    assert cluster["spec"]["moving"]["throttleBytesPerSecond"] == 2**63 - 1


@pytest.mark.parametrize("number", LARGE)
def test_a_number_that_helm_would_round_is_refused_with_its_path(
    helm: str, chart: Path, values: Callable[[Document], str], number: int
) -> None:
    said = refusal(helm, chart, "--values", values({"cluster": {"config": {"log.retention.ms": number}}}))
    assert "cluster.config.log.retention.ms: a number of about" in said
    assert "quote it, such as" in said


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ('cluster.moving={"throttleBytesPerSecond":9223372036854775807}', "cluster.moving.throttleBytesPerSecond"),
        (
            'operator.tolerations=[{"tolerationSeconds":9223372036854775807}]',
            "operator.tolerations[0].tolerationSeconds",
        ),
        ('cluster.brokers.resources.limits={"memory":9223372036854775807}', "cluster.brokers.resources.limits.memory"),
    ],
)
def test_numbers_are_looked_at_wherever_they_stand(helm: str, chart: Path, options: str, path: str) -> None:
    assert f"{path}: a number of about" in refusal(helm, chart, "--set-json", options)


def test_numbers_of_the_command_line_arrive_as_they_were_written(helm: str, chart: Path) -> None:
    options = ("--set", r"cluster.config.log\.retention\.ms=9223372036854775807")
    (cluster,) = [d for d in render(helm, chart, *options) if d["kind"] == "Cluster"]
    assert cluster["spec"]["config"] == AUTHORIZER | {"log.retention.ms": "9223372036854775807"}


def test_the_schema_takes_no_unknown_name_anywhere(chart: Path) -> None:
    assert closed(json.loads((chart / "values.schema.json").read_text())) == []


def test_the_schema_has_every_value(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())

    values = msgspec.yaml.decode((chart / "values.yaml").read_text())
    assert missing(schema, values, schema) == []


def test_rules_and_dashboard_name_only_metrics_that_there_are(helm: str, chart: Path) -> None:
    reference = (chart.parents[1] / "docs" / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(penstock_\w+)`", reference, flags=re.MULTILINE))
    assert len(known) > 30
    metrics = (chart.parents[1] / "operator" / "penstock_operator" / "engine" / "metrics.py").read_text()
    known |= {f"penstock_operator_{name}" for name in re.findall(r"\{prefix\}(\w+)", metrics)}
    known |= set(re.findall(r'"(penstock_operator_\w+)"', metrics))
    known |= {f"{name}_total" for name in re.findall(r'"(penstock_operator_\w+_errors)"', metrics)}
    documents = render(helm, chart, "--values", str(HERE / "variants" / "companion-tls-monitored.yaml"))
    (rules,) = [d for d in documents if d["kind"] == "PrometheusRule"]
    (board,) = [d for d in documents if d["kind"] == "ConfigMap" and "dashboard" in d["metadata"]["name"]]
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    panels = json.loads(board["data"]["penstock.json"])["panels"]
    expressions += [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        for metric in re.findall(r"\bpenstock_(?!io_cluster)\w+", expression):
            assert re.sub(r"_(bucket|count|sum)$", "", metric) in known, expression


def test_the_chart_and_the_packages_have_one_version(chart: Path) -> None:
    about = msgspec.yaml.decode((chart / "Chart.yaml").read_text())
    root = chart.parents[1]
    versions = {
        match[1]
        for part in ("broker", "operator")
        if (match := re.search(r'^version = "(.*)"', (root / part / "pyproject.toml").read_text(), re.MULTILINE))
    }
    assert versions == {about["version"]} == {about["appVersion"]}
