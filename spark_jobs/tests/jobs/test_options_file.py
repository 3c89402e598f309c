"""Options of connections from a properties file, such as `spark.options` of a User's Secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.options_file import add_options
from penstock_spark.jobs.spec.problems import InvalidJob
from penstock_spark.jobs.spec.references import Resolver

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ana" password="${env:HOME}=\\\\";'
FILE = f"kafka.security.protocol=SASL_SSL\nkafka.sasl.mechanism=SCRAM-SHA-512\nkafka.sasl.jaas.config={JAAS}\n"
JOB = """\
kind: validate
name: flights
source: {brokers: localhost:9092, topics: [flights]}
expectations: [{name: positive, sql: value > 0}]
dead_letters: {topic: letters}
checkpoint: state/flights
to: {format: topic, brokers: localhost:9092, topic: good, options: {kafka.client.id: me, kafka.sasl.mechanism: PLAIN}}
"""


@pytest.fixture
def options_file(tmp_path: Path) -> Path:
    path = tmp_path / "spark.options"
    path.write_text(FILE)
    return path


def job(text: str, options_file: Path) -> Any:
    found = document.parse(text, "job.yaml")
    add_options(found, options_file)
    return document.build_job(found, Resolver({}))


def test_every_connection_gets_the_options_and_keeps_its_own(options_file: Path) -> None:
    found = job(JOB, options_file)
    assert found.source.options == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": JAAS.replace("\\\\", "\\"),
    }
    assert found.to.options == {**found.source.options, "kafka.client.id": "me", "kafka.sasl.mechanism": "PLAIN"}
    assert found.dead_letters.options == {}, "they have the security of the source"


def test_a_connection_with_a_security_protocol_of_its_own_gets_nothing(options_file: Path) -> None:
    text = JOB.replace("kafka.client.id: me", "kafka.security.protocol: SSL")
    assert job(text, options_file).to.options == {"kafka.security.protocol": "SSL", "kafka.sasl.mechanism": "PLAIN"}


def test_targets_without_brokers_get_nothing(options_file: Path) -> None:
    text = JOB[: JOB.index("to:")] + "to: {format: delta, path: lake/flights}\n"
    assert not hasattr(job(text, options_file).to, "options")


def test_an_alias_does_not_carry_options_to_another_place(options_file: Path) -> None:
    text = JOB.replace("dead_letters: {topic: letters}", "dead_letters: {topic: letters, options: &o {}}")
    text = text.replace("topics: [flights]}", "topics: [flights], options: {}}").replace(
        "options: {kafka.client.id: me, kafka.sasl.mechanism: PLAIN}", "options: *o"
    )
    found = job(text, options_file)
    assert (found.dead_letters.options, len(found.to.options)) == ({}, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the file"),
        ("includeHeaders=true\n", 'unknown option "includeHeaders"'),
    ],
)
def test_a_file_that_cannot_be_used_is_a_problem_without_its_values(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "options"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidJob) as raised:
        job(JOB, path)
    (problem,) = raised.value.problems
    assert message in str(problem)
    assert "--options-file" in str(problem)
