"""The rendered chart of Spark jobs: golden files of its variants, and properties of each of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from penstock_charts import Document, closed, missing, pods, refusal, render

from penstock_spark.jobs.spec.document import build_job, parse
from penstock_spark.jobs.spec.problems import InvalidJob
from penstock_spark.jobs.spec.specs import TopicJob

HERE = Path(__file__).parent
VARIANTS = sorted(path.stem for path in (HERE / "variants").glob("*.yaml"))
RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
A_JOB = ("--values", str(HERE / "variants" / "defaults.yaml"))


@pytest.fixture(scope="session")
def chart(chart: Path) -> Path:
    return chart.parent / "penstock-spark-job"


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def documents(helm: str, chart: Path, variant: str) -> list[Document]:
    return render(helm, chart, "--values", str(HERE / "variants" / f"{variant}.yaml"), name="flights")


def config(documents: list[Document]) -> Document:
    """Return the ConfigMap's files, decoded."""
    (found,) = [d["data"] for d in documents if d["kind"] == "ConfigMap"]
    return {name: msgspec.yaml.decode(text) for name, text in found.items()}


def driver(documents: list[Document]) -> Document:
    (found,) = [pod for _name, pod in pods(documents)]
    return found


def rendered(helm: str, chart: Path, variant: str, *options: str) -> list[Document]:
    return render(helm, chart, "--values", str(HERE / "variants" / f"{variant}.yaml"), *options, name="flights")


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


def test_driver_and_executors_keep_to_the_restricted_profile(documents: list[Document]) -> None:
    found = [driver(documents)]
    if "executor.yaml" in config(documents):
        found.append(config(documents)["executor.yaml"]["spec"])
    for pod in found:
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, 10001, 10001)
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert [container["securityContext"] for container in pod["containers"]] == [RESTRICTED]
        for volume in pod["volumes"]:
            assert set(volume) - {"name"} <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
        writable = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if not mount.get("readOnly")}
        assert "/tmp" in writable
    assert "memory" in driver(documents)["containers"][0]["resources"]["limits"]


def test_only_a_driver_that_makes_executors_has_a_token_of_the_api_server(documents: list[Document]) -> None:
    template = config(documents).get("executor.yaml")
    assert driver(documents)["automountServiceAccountToken"] is (template is not None)
    assert template is None or template["spec"]["automountServiceAccountToken"] is False
    roles = [d for d in documents if d["kind"] == "Role"]
    assert len(roles) == (template is not None)
    for role in roles:
        assert [rule["resources"] for rule in role["rules"]] == [["pods"]]
        assert "*" not in role["rules"][0]["verbs"]


def test_an_executor_mounts_what_the_driver_mounts_for_the_job(documents: list[Document], variant: str) -> None:
    if variant == "alone":
        assert set(config(documents)) == {"job.yaml"}
        return
    own = {"config", "checkpoint", "tmp"}
    template = config(documents)["executor.yaml"]["spec"]

    def mounts(pod: Document) -> list[Document]:
        return [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] not in own]

    assert mounts(template) == mounts(driver(documents))
    assert [v for v in template["volumes"] if v["name"] not in own] == [
        v for v in driver(documents)["volumes"] if v["name"] not in own
    ]
    env = {variable["name"] for variable in template["containers"][0].get("env", ())}
    assert env <= {variable["name"] for variable in driver(documents)["containers"][0]["env"]}


def test_the_labels_that_select_the_driver_are_not_those_of_executors(documents: list[Document]) -> None:
    (owner,) = [d for d in documents if d["kind"] == "StatefulSet"]
    (service,) = [d for d in documents if d["kind"] == "Service"]
    selected = owner["spec"]["selector"]["matchLabels"]
    assert service["spec"]["selector"] == selected
    assert selected.items() <= owner["spec"]["template"]["metadata"]["labels"].items()
    if template := config(documents).get("executor.yaml"):
        assert not selected.items() <= template["metadata"]["labels"].items()


def test_the_job_file_has_what_the_chart_knows_unless_the_values_say_otherwise(helm: str, chart: Path) -> None:
    job = config(rendered(helm, chart, "defaults"))["job.yaml"]
    assert (job["name"], job["checkpoint"]) == ("flights", "/var/lib/penstock-spark/checkpoint")
    assert job["metrics"] == {"host": "0.0.0.0", "port": 8088}
    job = config(rendered(helm, chart, "with-state"))["job.yaml"]
    assert job["name"] == "flights-by-hour"
    assert job["source"]["max_records_per_batch"] == 107374182400
    assert config(rendered(helm, chart, "everything"))["job.yaml"]["checkpoint"] == "/data/checkpoints/flights"
    assert "metrics" not in config(rendered(helm, chart, "alone"))["job.yaml"]


def test_passwords_stay_in_their_secrets_and_the_job_file_refers_to_them(helm: str, chart: Path) -> None:
    documents = rendered(helm, chart, "everything")
    options = config(documents)["job.yaml"]["source"]["options"]
    assert 'password="${env:KAFKA_PASSWORD}";' in options["kafka.sasl.jaas.config"]
    assert options["kafka.ssl.key.password"] == "${file:/etc/kafka-client/password}"
    (container,) = driver(documents)["containers"]
    (variable,) = [one for one in container["env"] if one["name"] == "KAFKA_PASSWORD"]
    assert variable["valueFrom"] == {"secretKeyRef": {"name": "flights-kafka", "key": "password"}}
    assert "/etc/kafka-client" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_settings_of_spark_win_over_those_of_the_chart_and_keep_their_types(helm: str, chart: Path) -> None:
    settings = config(rendered(helm, chart, "with-state"))["job.yaml"]["spark"]
    assert settings["spark.executor.instances"] == 4
    assert settings["spark.files.maxPartitionBytes"] == 134217728
    assert settings["spark.ui.enabled"] is False
    assert settings["spark.memory.fraction"] == 0.5
    assert settings["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert config(rendered(helm, chart, "alone"))["job.yaml"]["spark"]["spark.master"] == "local[2]"


@pytest.mark.parametrize(("said", "meant"), [("false", False), ("0", 0)])
def test_a_setting_of_spark_that_the_values_turn_off_is_off(helm: str, chart: Path, said: str, meant: object) -> None:
    keys = [r"spark\.decommission\.enabled", r"spark\.executor\.decommission\.forceKillTimeout"]
    options = [part for key in keys for part in ("--set", f"job.spark.{key}={said}")]
    settings = config(rendered(helm, chart, "defaults", *options))["job.yaml"]["spark"]
    assert settings["spark.decommission.enabled"] == meant
    assert settings["spark.executor.decommission.forceKillTimeout"] == meant
    assert settings["spark.storage.decommission.enabled"] == "true"


def test_a_key_without_a_value_says_nothing(helm: str, chart: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("job:\n  name:\n  metrics:\n    host:\n  spark:\n    spark.executor.memory:\n    spark.a: b\n")
    usual = config(rendered(helm, chart, "defaults"))["job.yaml"]
    job = config(rendered(helm, chart, "defaults", "--values", str(values)))["job.yaml"]
    assert job["spark"].pop("spark.a") == "b"
    assert job == usual
    values.write_text("job: {metrics: , spark: , name: }\n")
    assert config(rendered(helm, chart, "defaults", "--values", str(values)))["job.yaml"] == usual


def test_a_driver_that_was_never_ready_is_replaced_by_an_upgrade(documents: list[Document]) -> None:
    # In an OrderedReady set, Kubernetes waits for a pod to be ready before it replaces the pod (kubernetes#67250).
    (owner,) = [d for d in documents if d["kind"] == "StatefulSet"]
    assert owner["spec"]["podManagementPolicy"] == "Parallel"
    assert owner["spec"]["replicas"] == 1


def texts(part: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values that Kubernetes accepts only as text: names, references to names, and labels."""
    if isinstance(part, dict):
        for key, value in part.items():
            below = f"{path}.{key}"
            if isinstance(value, dict | list):
                yield from texts(value, below)
            elif key == "name" or key.endswith(("Name", "namespace")) or path.endswith(("labels", "matchLabels")):
                yield below, value
    elif isinstance(part, list):
        for value in part:
            yield from texts(value, path)


@pytest.mark.parametrize(
    ("name", "objects"),
    [
        ("123", "job-123"),
        ("true", "true"),
        ("1e3", "job-1e3"),
        ("a.b", "a-b"),
        (f"{'a' * 38}--b", "a" * 38),
        (f"{'a' * 52}z", "a" * 40),
    ],
)
def test_a_release_of_any_name_renders_names_and_labels_that_are_text(
    helm: str, chart: Path, name: str, objects: str
) -> None:
    options = (*A_JOB, "--set", "checkpoint.inExecutors=true", "--set-string", "nameOverride=456")
    options += ("--set-string", "driver.priorityClassName=7,executors.priorityClassName=7,serviceAccount.name=89")
    documents = render(helm, chart, *options, "--namespace", "42", name=name)
    found = [each for document in [*documents, *config(documents).values()] for each in texts(document)]
    assert len(found) > 50
    assert not [(path, value) for path, value in found if not isinstance(value, str)]
    (service,) = [d["metadata"] for d in documents if d["kind"] == "Service"]
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", service["name"]), "Kubernetes takes no other for a Service"
    assert (service["name"], service["namespace"]) == (objects, "42")
    assert service["labels"]["app.kubernetes.io/instance"] == name


def test_an_image_by_digest_is_the_drivers_and_the_executors(helm: str, chart: Path) -> None:
    digest = f"sha256:{'0a' * 32}"
    documents = rendered(helm, chart, "everything", "--set", f"image.digest={digest}")
    image = f"registry.example.com:5000/team/spark@{digest}"
    assert driver(documents)["containers"][0]["image"] == image
    assert config(documents)["executor.yaml"]["spec"]["containers"][0]["image"] == image
    assert config(documents)["job.yaml"]["spark"]["spark.kubernetes.container.image"] == image


def test_the_port_of_metrics_may_be_said_twice_where_it_is_the_same(helm: str, chart: Path) -> None:
    job = config(rendered(helm, chart, "everything", "--set", "job.metrics.port=9999"))["job.yaml"]
    assert job["metrics"] == {"host": "0.0.0.0", "port": 9999}


def test_state_on_a_volume_of_one_node_keeps_executors_on_the_drivers_node(helm: str, chart: Path) -> None:
    pod = config(rendered(helm, chart, "with-state"))["executor.yaml"]["spec"]
    (near,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "driver"
    assert "/var/lib/penstock-spark/checkpoint" in {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]}
    anywhere = rendered(helm, chart, "with-state", "--set", "checkpoint.storage.accessMode=ReadWriteMany")
    assert "podAffinity" not in config(anywhere)["executor.yaml"]["spec"]["affinity"]


def test_a_changed_job_restarts_the_driver_and_a_newer_chart_does_not(helm: str, chart: Path, tmp_path: Path) -> None:
    import shutil

    newer = tmp_path / "penstock-spark-job"
    shutil.copytree(chart, newer)
    about = (newer / "Chart.yaml").read_text()
    (newer / "Chart.yaml").write_text(re.sub(r"^version: .*", "version: 9.9.9", about, flags=re.MULTILINE))

    def spec(chart: Path, *options: str) -> Document:
        (found,) = [d for d in rendered(helm, chart, "defaults", *options) if d["kind"] == "StatefulSet"]
        return dict(found["spec"])

    assert spec(chart) == spec(newer)
    assert spec(chart) != spec(chart, "--set", "job.source.starting=latest")
    assert spec(chart) != spec(chart, "--set", "executors.podLabels.a=b")


def test_the_checkpoint_outlives_the_release(helm: str, chart: Path) -> None:
    (claim,) = [d for d in rendered(helm, chart, "defaults") if d["kind"] == "PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not [d for d in rendered(helm, chart, "everything") if d["kind"] == "PersistentVolumeClaim"]


def test_a_claim_of_any_name_that_kubernetes_takes_holds_the_checkpoint(helm: str, chart: Path) -> None:
    name = f"{'lake' * 20}.v2"
    pod = driver(rendered(helm, chart, "defaults", "--set", f"checkpoint.existingClaim={name}"))
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "checkpoint"]
    assert volume["persistentVolumeClaim"] == {"claimName": name}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("driver.memory=1Gi", "does not match pattern"),
        ("executors.instances=-1", "minimum: got -1, want 0"),
        ("executors.core=1", "additional properties 'core' not allowed"),
        ("checkpoint.storage.accessMode=RWO", "value must be one of"),
        ("driver.resources.limits.memory=null", "missing property 'memory'"),
        ("env[0].valu=a,env[0].name=a", "additional properties 'valu' not allowed"),
        ("metrics.port=80", "minimum: got 80, want 1,024"),
        ("job.kind=null", "job.kind is missing"),
        ("job.kind=audit", "a job of kind audit ends by itself"),
        ("job.trigger.once=true", "kind archive with trigger.once ends by itself"),
        ("job.kind=aggregate", "set checkpoint.inExecutors=true"),
        (
            "checkpoint.inExecutors=true,checkpoint.storage.accessMode=ReadWriteOncePod",
            "only allows the driver to mount the volume",
        ),
        ("image.digest=sha256:12", "does not match pattern"),
        ("checkpoint.existingClaim=a..b", "does not match pattern"),
        ("serviceAccount.create=false", "serviceAccount.create=false requires serviceAccount.name"),
        ("serviceAccount.create=false,rbac.create=false", "serviceAccount.create=false requires serviceAccount.name"),
        ("job.metrics.port=9100", "job.metrics.port=9100 differs from metrics.port=8088"),
    ],
)
def test_wrong_values_are_refused_with_words_that_help(helm: str, chart: Path, options: str, words: str) -> None:
    assert words in refusal(helm, chart, *A_JOB, "--set", options)


@pytest.mark.parametrize("part", ["trigger", "metrics", "spark"])
@pytest.mark.parametrize("said", ["once", "10 seconds", "8088"])
def test_a_part_of_the_job_that_is_no_mapping_comes_to_the_driver_that_names_its_line(
    helm: str, chart: Path, part: str, said: str
) -> None:
    (data,) = [d["data"] for d in rendered(helm, chart, "defaults", "--set", f"job.{part}={said}") if "data" in d]
    with pytest.raises(InvalidJob, match=rf"job.yaml:\d+:\d+: {part}: "):
        build_job(parse(data["job.yaml"], "job.yaml"))


OFFSETS = {"topic": {"0": 2**53, "1": 2**63 - 1}}


def test_a_number_that_helm_would_round_is_refused_with_its_path_and_kept_in_quotes(
    helm: str, chart: Path, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_bytes(msgspec.yaml.encode({"job": {"source": {"starting": OFFSETS}}}))
    said = refusal(helm, chart, *A_JOB, "--values", str(file))
    assert "job.source.starting.topic.0: a number of about 9007199254740992 loses precision" in said
    quoted = {topic: {p: str(offset) for p, offset in offsets.items()} for topic, offsets in OFFSETS.items()}
    file.write_bytes(
        msgspec.yaml.encode({"job": {"source": {"starting": quoted, "max_records_per_batch": 10_000_000}}})
    )
    (data,) = [d["data"] for d in rendered(helm, chart, "defaults", "--values", str(file)) if "data" in d]
    job = build_job(parse(data["job.yaml"], "job.yaml"))
    assert isinstance(job, TopicJob)
    assert job.source.starting == OFFSETS
    assert job.source.max_records_per_batch == 10_000_000


def test_without_a_job_nothing_is_installed(helm: str, chart: Path) -> None:
    assert "`penstock-spark init archive` prints an example" in refusal(helm, chart)


def test_the_schema_takes_no_unknown_name_anywhere(chart: Path) -> None:
    assert closed(json.loads((chart / "values.schema.json").read_text())) == []


def test_the_schema_has_every_value(chart: Path) -> None:
    schema = json.loads((chart / "values.schema.json").read_text())
    assert missing(schema, msgspec.yaml.decode((chart / "values.yaml").read_text()), schema) == []


def test_the_chart_and_its_package_have_one_version(chart: Path) -> None:
    about = msgspec.yaml.decode((chart / "Chart.yaml").read_text())
    package = (chart.parents[1] / "spark_jobs" / "pyproject.toml").read_text()
    found = re.search(r'^version = "(.*)"', package, re.MULTILINE)
    assert found is not None
    assert {found[1]} == {about["version"]} == {about["appVersion"]}
