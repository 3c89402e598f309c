"""Secrets in the environment or in files, to which a job file refers like Kafka's config providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_spark.jobs.run.plans import plan
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.kinds import Archive, Backfill, DlqReplay, Validate
from penstock_spark.jobs.spec.problems import InvalidJob
from penstock_spark.jobs.spec.references import MAX_FILE_BYTES, Resolver, properties
from penstock_spark.jobs.spec.specs import DeltaTarget

JOB = """\
kind: archive
name: flights
source:
  brokers: localhost:9092
  topics: [flights]
  options:
    kafka.sasl.jaas.config: VALUE
checkpoint: state/flights
to: {format: delta, path: lake/flights}
"""


def job(text: str, resolver: Resolver | None = None) -> Any:
    return document.build_job(document.parse(text, "job.yaml"), resolver)


def resolved(value: str, environment: dict[str, str] | None = None) -> str:
    found = job(JOB.replace("VALUE", value), Resolver(environment or {}))
    return str(found.source.options["kafka.sasl.jaas.config"])


def problem(text: str, resolver: Resolver | None = None) -> str:
    with pytest.raises(InvalidJob) as raised:
        job(text, resolver)
    (found,) = raised.value.problems
    return str(found)


def test_a_variable_of_the_environment_is_put_in() -> None:
    assert resolved("${env:PASSWORD}", {"PASSWORD": "s3cret"}) == "s3cret"


def test_a_reference_may_stand_within_a_text_and_so_may_several() -> None:
    value = """'X required username="${env:USER}" password="${env:PASSWORD}";'"""
    found = resolved(value, {"USER": "alice", "PASSWORD": "p"})
    assert found == 'X required username="alice" password="p";'


@pytest.mark.parametrize(
    ("held", "found"), [("s3cret\n", "s3cret"), ("s3cret\r\n", "s3cret"), ("two\nlines\n\n", "two\nlines\n"), ("", "")]
)
def test_a_files_text_is_put_in_without_the_newline_at_its_end(tmp_path: Path, held: str, found: str) -> None:
    (tmp_path / "password").write_bytes(held.encode())
    assert resolved(f"${{file:{tmp_path}/password}}") == found


def test_a_value_of_a_properties_file_is_put_in(tmp_path: Path) -> None:
    (tmp_path / "kafka.properties").write_text("# of the brokers\nuser=alice\npassword = a:b=c\n")
    assert resolved(f"${{file:{tmp_path}/kafka.properties:password}}") == "a:b=c"


def test_what_a_secret_holds_is_not_looked_at_again() -> None:
    assert resolved("${env:PASSWORD}", {"PASSWORD": "${env:HOME}", "HOME": "/"}) == "${env:HOME}"


@pytest.mark.parametrize("value", ["$HOME", "${HOME}", "a$b", "{}", "100"])
def test_what_is_no_reference_stays_as_it_is(value: str) -> None:
    assert resolved(f"'{value}'", {"HOME": "/"}) == value


def test_options_and_storage_are_resolved_wherever_a_kind_has_them() -> None:
    secrets = Resolver({"A": "1", "B": "2"})
    to = "to: {format: delta, path: 's3://lake/x', storage: {aws_secret_access_key: '${env:A}'}}"
    archive = job(JOB.replace("VALUE", "x").replace("to: {format: delta, path: lake/flights}", to), secrets)
    assert isinstance(archive, Archive)
    assert isinstance(archive.to, DeltaTarget)
    assert archive.to.storage == {"aws_secret_access_key": "1"}
    head = "name: x\ncheckpoint: c\nsource: {brokers: 'h:1', topics: [t]}\n"
    options = "options: {kafka.sasl.jaas.config: '${env:B}'}"
    validate = job(
        f"kind: validate\n{head}expectations: [{{name: a, sql: a}}]\ndead_letters: {{topic: d, {options}}}", secrets
    )
    assert isinstance(validate, Validate)
    assert validate.dead_letters.options == {"kafka.sasl.jaas.config": "2"}
    replay = job(f"kind: dlq-replay\n{head}{options}", secrets)
    assert isinstance(replay, DlqReplay)
    assert replay.options == {"kafka.sasl.jaas.config": "2"}
    files = (
        "kind: backfill\nname: x\ncheckpoint: c\nformat: csv\npath: in\nschema: a int\nread_options: {x: '${env:A}'}\n"
    )
    backfill = job(f"{files}to: {{format: topic, brokers: 'h:1', topic: t, {options}}}", secrets)
    assert isinstance(backfill, Backfill)
    assert (backfill.read_options, backfill.to.options) == ({"x": "1"}, {"kafka.sasl.jaas.config": "2"})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${env:PASSWORD}", 'the environment variable "PASSWORD" is not set'),
        ("${file:HERE/none}", 'cannot read the file "HERE/none": No such file or directory'),
        ("${file:HERE}", 'cannot read the file "HERE": Is a directory'),
        ("${file:HERE/large}", 'the file "HERE/large" is larger than 65,536 bytes'),
        ("${file:HERE/binary}", 'the file "HERE/binary" is not UTF-8: byte 4'),
        ("${file:HERE/password:key}", 'the file "HERE/password" has no key "key"; add it'),
    ],
)
def test_what_cannot_be_put_in_is_told_with_its_place_and_never_with_a_value(
    tmp_path: Path, value: str, said: str
) -> None:
    (tmp_path / "large").write_bytes(b"s3cret" * MAX_FILE_BYTES)
    (tmp_path / "binary").write_bytes(b"s3cr\xff")
    (tmp_path / "password").write_text("s3cret\n")
    found = problem(JOB.replace("VALUE", value.replace("HERE", str(tmp_path))), Resolver({"OTHER": "s3cret"}))
    assert found == f"job.yaml:7:29: source.options.kafka.sasl.jaas.config: {said.replace('HERE', str(tmp_path))}"
    assert "s3cr" not in found


def test_a_variable_that_is_no_text_is_told_and_not_shown() -> None:
    found = problem(JOB.replace("VALUE", "${env:PASSWORD}"), Resolver({"PASSWORD": "s3cret\udcff"}))
    assert found.endswith('the environment variable "PASSWORD" is not UTF-8')


def test_all_that_is_missing_is_told_at_once() -> None:
    text = JOB.replace("VALUE", "'${env:A}'\n    other: ${env:B}")
    with pytest.raises(InvalidJob) as raised:
        job(text, Resolver({}))
    assert [p.place.line for p in raised.value.problems] == [7, 8]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${evn:PASSWORD}", 'unknown provider "evn"'),
        ("${directory:/run:password}", 'unknown provider "directory"'),
        ("'${env:}'", "is empty"),
        ("'${file:/run/secrets:}'", "is empty"),
        ("${env:PASSWORD", "it has no end"),
        ("'${env:${env:NAME}}'", "it has no end, or braces inside"),
    ],
)
def test_a_reference_that_can_mean_nothing_is_told_before_the_job_is_to_run(value: str, said: str) -> None:
    found = problem(JOB.replace("VALUE", value))
    assert found.startswith("job.yaml:7:29: source.options.kafka.sasl.jaas.config: ")
    assert said in found
    assert "write ${env:NAME}, ${file:/path} or ${file:/path:key}" in found
    assert value.strip("'") not in found, "what was no reference may be a password"


@pytest.mark.parametrize(
    ("was", "becomes", "place"),
    [
        ("brokers: localhost:9092", "brokers: '${env:BROKERS}'", "4:12: source.brokers"),
        ("[flights]", "['${env:TOPIC}']", "5:12: source.topics[0]"),
        ("name: flights", "name: ${env:NAME}", "2:7: name"),
        ("state/flights", "${file:/run/checkpoint}", "8:13: checkpoint"),
        ("path: lake/flights", "path: '${env:LAKE}'", "9:27: to.path"),
    ],
)
def test_elsewhere_a_reference_is_refused_with_what_to_do_instead(was: str, becomes: str, place: str) -> None:
    key = place.partition(": ")[2].removesuffix("[0]")
    said = f"references are allowed in options and storage only; write the value, or set it with --set {key}=..."
    text = JOB.replace("VALUE", "x").replace(was, becomes)
    for resolver in (None, Resolver({"BROKERS": "h:1"})):
        assert problem(text, resolver) == f"job.yaml:{place}: {said}"


def test_in_sql_and_in_settings_of_spark_a_reference_is_sparks_own() -> None:
    more = "transform: {sql: \"SELECT '${env:HOME}' AS home FROM source\"}\nspark: {spark.x: '${env:HOME}'}\n"
    found = job(JOB.replace("VALUE", "x") + more, Resolver({"HOME": "/"}))
    assert found.transform.sql == "SELECT '${env:HOME}' AS home FROM source"
    assert found.spark == {"spark.x": "${env:HOME}"}


def test_cve_2019_12399_a_plan_shows_the_references_and_needs_nothing_that_they_name() -> None:
    found = job(JOB.replace("VALUE", "'${env:A} ${file:/run/b:c} ${env:A}'"))
    assert dict(plan(found).lines)["secrets"] == "${env:A}, ${file:/run/b:c}"
    assert "secrets" not in dict(plan(job(JOB.replace("VALUE", "x"))).lines)


def test_a_properties_file_reads_as_java_reads_it() -> None:
    text = (
        "! a comment\n"
        "plain=value\n"
        "  spaced   =   value with spaces \r\n"
        "colon: value\n"
        "blank value\n"
        "a\\ b\\=c=d\\ne\n"
        "long=one, \\\n"
        "     two\n"
        "path=C:\\\\x\n"
        "umlaut=\\u00fc\n"
        "empty=\n"
        "alone\n"
        "plain=last"
    )
    assert properties(text) == {
        "plain": "last",
        "spaced": "value with spaces ",
        "colon": "value",
        "blank": "value",
        "a b=c": "d\ne",
        "long": "one, two",
        "path": "C:\\x",
        "umlaut": "ü",
        "empty": "",
        "alone": "",
    }
