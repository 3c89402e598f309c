"""All errors of a job file are reported at once, with line, column, key and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_spark.jobs.run import reading
from penstock_spark.jobs.spec import document
from penstock_spark.jobs.spec.kinds import KINDS, Aggregate, Archive
from penstock_spark.jobs.spec.problems import InvalidJob, Problem
from penstock_spark.jobs.spec.scalars import Duration, Size
from penstock_spark.jobs.spec.specs import DeltaTarget, JobSpec, TopicTarget

GOOD = """\
kind: archive
name: flights
source:
  brokers: localhost:9092
  topics: [flights]
checkpoint: state/flights
to:
  format: delta
  path: lake/flights
"""


def problems(text: str | bytes, *sets: str) -> list[str]:
    """Return the errors without the file's name."""
    with pytest.raises(InvalidJob) as raised:
        job(text, *sets)
    return [str(p).removeprefix("job.yaml:") for p in raised.value.problems]


def job(text: str | bytes, *sets: str) -> JobSpec:
    found = document.parse(text, "job.yaml")
    for assignment in sets:
        document.set_value(found, assignment)
    return document.build_job(found)


def test_a_file_becomes_a_job_with_defaults() -> None:
    found = job(GOOD)
    assert isinstance(found, Archive)
    assert found.source.topics == ["flights"]
    assert isinstance(found.to, DeltaTarget)
    assert found.to.compact is not None
    assert found.to.compact.target == Size(128 << 20)
    assert found.restart.max_backoff == Duration(60_000)


@pytest.mark.parametrize(
    ("was", "becomes", "expected"),
    [
        ("kind: archive", "kind: archiv", '1:7: kind: unknown kind "archiv"; did you mean archive?'),
        ("kind: archive", "kind: [a]", '1:7: kind: unknown kind "a list"'),
        ("kind: archive\n", "", "1:1: kind: missing; valid kinds: archive"),
        ("name: flights", "name: my flights", '2:7: name: invalid name "my flights"; use'),
        ("topics:", "topic:", "5:3: source.topic: unknown key; did you mean topics?; allowed: brokers"),
        ("topics: [flights]", "topics: flights", '5:11: source.topics: invalid value "flights"; expected a list'),
        ("topics: [flights]", "topics: [a b]", '5:11: source.topics: invalid topic name "a b"'),
        ("topics: [flights]", "topics: []", "5:11: source.topics: set exactly one of topics, pattern"),
        ("topics: [flights]", "topics: [[a]]", "5:12: source.topics[0]: expected text, got a list"),
        (
            "localhost:9092",
            "localhost:0",
            '4:12: source.brokers: invalid bootstrap server "localhost:0": the port',
        ),
        ("localhost:9092", "::1:9092", '4:12: source.brokers: invalid bootstrap server "::1:9092": an IPv6 address'),
        ("localhost:9092", "{a: b}", "4:12: source.brokers: expected text, got a mapping"),
        ("checkpoint: state/flights\n", "", "1:1: checkpoint: missing"),
        ("checkpoint: state/flights", "checkpoint: ' '", "6:13: checkpoint: the path is empty"),
        ("format: delta", "format: iceberg", '8:11: to.format: invalid value "iceberg"; valid values: parquet'),
        ("  format: delta\n", "", "8:3: to.format: missing; valid values: parquet, delta"),
        ("path: lake/flights", "path: x\n  time: {by: week}", '10:14: to.time.by: invalid value "week"'),
        ("path: lake/flights", "path: x\n  file_size: 3 parsecs", '10:14: to.file_size: invalid size "3 parsecs"'),
        ("path: lake/flights", "path: x\n  partition_by: [a, a]", "10:17: to.partition_by: duplicate column name"),
        ("name: flights", "name: flights\ntrigger: {every: often}", '3:18: trigger.every: invalid duration "often"'),
        ("name: flights", "name: flights\ntrigger: {once: maybe}", '3:17: trigger.once: invalid value "maybe"'),
        (
            "name: flights",
            "name: flights\nrestart: {attempts: -1}",
            "3:21: restart.attempts: -1 is out of range; use 0 to 1,000,000",
        ),
        ("name: flights", "name: flights\nname: again", "3:1: name: duplicate key, first used in line 2"),
        ("name: flights", "name: flights\nmetrics: {port: 70000}", "3:17: metrics.port: invalid port 70000"),
        ("name: flights", "name: flights\ntransform: {sql: ''}", "3:18: transform.sql: expected SQL text"),
        ("name: flights", "name: flights\n? [a]\n: 1", "3:3: a key must be text"),
        ("name: flights", "name: flights\n<<: {a: 1}", "3:1: merge keys (<<) are not supported"),
        ("name: flights", "name: 'flights", "1"),
        ("to:\n", "to: !!python/object:os.system\n", '7:5: to: YAML tag "tag:yaml.org,2002:python/object:os.sys'),
        (
            "topics: [flights]",
            "topics: [f]\n  starting: soon",
            '6:13: source.starting: invalid start "soon"; use earliest',
        ),
    ],
)
def test_a_problem_is_told_with_its_line_and_key(was: str, becomes: str, expected: str) -> None:
    assert was in GOOD
    found = problems(GOOD.replace(was, becomes, 1))
    if expected == "1":
        assert "invalid YAML" in found[0]
        return
    assert len(found) == 1
    assert found[0].startswith(expected), found[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("pattern: '('", '5:12: source.pattern: invalid regular expression "(": missing )'),
        ("pattern: ' '", "5:12: source.pattern: the pattern is empty"),
        ("assign: {}", "5:11: source.assign: no partitions; write them by topic"),
        ("assign:\n    a b: [0]", '6:5: source.assign: invalid topic name "a b"'),
        ("assign:\n    a: []", "6:8: source.assign.a: no partitions"),
        ("assign:\n    a: [0]\n    b: [1, -1]", "7:8: source.assign.b: invalid partition -1"),
        ("assign:\n    a: [2147483648]", "6:8: source.assign.a: invalid partition 2147483648"),
        ("assign:\n    a: [0, 1, 0]", "6:8: source.assign.a: duplicate partition"),
        ("topics: [a]\n  starting: {}", "6:13: source.starting: no partitions"),
        ("topics: [a]\n  starting:\n    a: {zero: 5}", '7:15: source.starting.a.zero: invalid partition "zero"'),
        ("topics: [a]\n  starting:\n    a: {-1: 5}", '7:13: source.starting.a.-1: invalid partition "-1"'),
        ("topics: [a]\n  starting:\n    a: {0: -3}", "7:12: source.starting.a.0: invalid offset -3"),
    ],
)
def test_what_cannot_be_read_is_refused_where_it_stands(source: str, expected: str) -> None:
    (told,) = problems(GOOD.replace("topics: [flights]", source))
    assert expected in told


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("kafka.bootstrap.servers", "brokers"),
        ("subscribe", "topics"),
        ("SUBSCRIBEPATTERN", "pattern"),
        ("assign", "assign"),
        ("startingOffsets", "starting"),
        ("startingTimestamp", "starting"),
        ("kafka.isolation.level", "isolation"),
        ("failOnDataLoss", "fail_on_data_loss"),
        ("maxOffsetsPerTrigger", "max_records_per_batch"),
        ("minPartitions", "min_partitions"),
    ],
)
def test_an_option_that_is_a_key_of_the_source_is_refused_with_the_key(option: str, key: str) -> None:
    (told,) = problems(GOOD.replace("topics: [flights]", f"topics: [flights]\n  options:\n    {option}: x"))
    assert told.startswith(f"7:{7 + len(option)}: source.options.{option}: the key {key}")


@pytest.mark.parametrize("option", ["kafka.bootstrap.servers", "topic"])
@pytest.mark.parametrize(
    ("place", "sets"),
    [
        ("to.options", ["kind=dedup", "by.a=key", "within=1h", "to={format: topic, brokers: 'h:1', topic: t}"]),
        ("dead_letters.options", ["kind=validate", "expectations=[{name: a, sql: b}]", "dead_letters.topic=bad"]),
        ("options", ["kind=dlq-replay"]),
    ],
)
def test_an_option_that_says_where_records_go_is_refused(place: str, sets: list[str], option: str) -> None:
    text = GOOD.partition("to:")[0]
    (told,) = problems(text, *sets, f"{place}.{option}=x")
    assert f"{place}.{option}: the key {'brokers' if 'kafka' in option else 't'}" in told


SAME, OTHER = "'B:2, localhost:9092'", "'other:9092'"
KINDS_WITH_TOPICS = {
    "dedup": "by: {a: key}\nwithin: 1 hour\n",
    "aggregate": "by: {a: key}\nselect: {n: count(*)}\ntime: timestamp\nwatermark: 1 hour\nemit: updates\n",
    "validate": "expectations: [{name: a, sql: b}]\ndead_letters: {topic: elsewhere}\n",
}


def circle(kind: str, reads: str, writes: str, brokers: str) -> str:
    target = f"to:\n  format: topic\n  brokers: {brokers}\n  topic: {writes}\n"
    source = GOOD.partition("to:")[0].replace("topics: [flights]", reads).replace("archive", kind)
    return source + target + KINDS_WITH_TOPICS[kind]


@pytest.mark.parametrize("kind", KINDS_WITH_TOPICS)
@pytest.mark.parametrize("reads", ["topics: [a, flights]", "assign: {flights: [0]}", "pattern: light"])
def test_a_job_that_would_read_what_it_writes_is_refused(kind: str, reads: str) -> None:
    (told,) = problems(circle(kind, reads, "flights", SAME))
    assert told.startswith('10:10: to.topic: the job also reads topic "flights" and')
    assert "write to another topic" in told
    job(circle(kind, reads, "flights", OTHER))
    job(circle(kind, reads, "Flights" if "pattern" not in reads else "other", SAME))


def test_the_pattern_that_is_told_reads_the_same_without_the_topic_that_is_written() -> None:
    (told,) = problems(circle("dedup", "pattern: light", "flights.clean", SAME))
    told = told.partition("without it: ")[2]
    job(circle("dedup", f"pattern: '{told}'", "flights.clean", SAME))
    assert problems(circle("dedup", f"pattern: '{told}'", "flights", SAME))


@pytest.mark.parametrize("brokers", ["", f", brokers: {SAME}"])
def test_dead_letters_that_the_job_would_read_are_refused(brokers: str) -> None:
    text = circle("validate", "pattern: ^flights", "good", SAME)
    (told,) = problems(text.replace("{topic: elsewhere}", f"{{topic: flights.bad{brokers}}}"))
    assert '12:23: dead_letters.topic: the job also reads topic "flights.bad"' in told
    job(text.replace("{topic: elsewhere}", f"{{topic: flights.bad, brokers: {OTHER}}}"))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("min_partitions: 8", "6:19: source.min_partitions: a mirror keeps order"),
        (
            "options: {minPartitions: 8}",
            "6:28: source.options.minPartitions: the key min_partitions (which a mirror can",
        ),
        ("options: {maxRecordsPerPartition: 8}", "6:37: source.options.maxRecordsPerPartition: a mirror keeps order"),
    ],
)
def test_a_mirror_whose_partitions_would_be_split_is_refused(key: str, expected: str) -> None:
    text = GOOD.replace("archive", "mirror").replace("topics: [flights]", f"topics: [flights]\n  {key}")
    (told,) = problems(text, "to={format: topic, brokers: 'h:1'}")
    assert told.startswith(expected)


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["kind=audit", "archive={format: delta, path: p}", "bucket=0 s"], "bucket: must be greater than 0"),
        (
            ["kind=dedup", "by.a=key", "within=0 s", "checkpoint=c", "to.format=console"],
            "within: must be greater than 0",
        ),
        (
            ["kind=dedup", "by.a=key", "within=1 s", "checkpoint=c", "to={format: console, rows: 0}"],
            "to.rows: must be at least 1",
        ),
        (["checkpoint=c", "to.format={}"], 'to.format: invalid value "a mapping"'),
    ],
)
def test_what_has_no_meaning_is_refused(sets: list[str], expected: str) -> None:
    (told,) = problems(GOOD.partition("checkpoint:")[0], *sets)
    assert expected in told
    assert "Node" not in told


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = GOOD.replace("localhost:9092", "[1]").replace("lake/flights", "{}").replace("name:", "nam:")
    assert [p.split(": ")[:2] for p in problems(text)] == [
        ["1:1", "name"],
        ["2:1", "nam"],
        ["4:12", "source.brokers"],
        ["9:9", "to.path"],
    ]


def test_folders_that_no_reader_looks_into_are_refused() -> None:
    (told,) = problems(GOOD, "to={format: parquet, path: p, partition_by: [origin, _day]}")
    assert "to.partition_by: \"_day\" starts with '_'" in told
    job(GOOD, "to={format: delta, path: p, partition_by: [_day]}")


def test_parquet_on_an_object_store_is_refused_with_the_reason() -> None:
    text = GOOD.replace("format: delta", "format: parquet").replace("lake/flights", "s3://bucket/x")
    assert "needs atomic renames" in problems(text)[0]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("by: {a: b}\nselect: {}", "select: no columns to compute"),
        ("select: {n: count(*)}", "window: no window and no columns to group by"),
        ("by: {a: b}\nselect: {n: count(*)}", "emit: final needs a window"),
        ("window: {length: 1h}\nselect: {window_end: count(*)}", "select: duplicate column name"),
        ("window: {length: 1h, slide: 2h}\nselect: {n: count(*)}", "window.slide: must be greater than 0 and at most"),
    ],
)
def test_what_an_aggregation_cannot_be_is_refused(more: str, expected: str) -> None:
    text = GOOD.replace("kind: archive", "kind: aggregate") + f"time: timestamp\nwatermark: 1 hour\n{more}\n"
    assert expected in problems(text)[0]


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "just text", "a: *nowhere", "\x00", b"\xff\xfe\xfa"])
def test_what_is_no_mapping_of_yaml_is_refused(text: str | bytes) -> None:
    assert len(problems(text)) == 1


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep = "{a: " * 400 + "1" + "}" * 400
    assert problems(GOOD + f"spark: {deep}\n")


def test_an_anchor_that_is_repeated_does_not_grow_without_bound() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for n, m in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{n}: &{n} [{', '.join([f'*{m}'] * 10)}]\n"
    assert any("unknown key" in p for p in problems(GOOD + bomb))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (document.MAX_FILE_BYTES + 1))
    with pytest.raises(InvalidJob, match="larger than"):
        document.read(path)


def test_a_whole_number_may_stand_in_quotes() -> None:
    found = job(GOOD, "source.starting={flights: {0: '9223372036854775807', 1: '-1'}}", "restart.attempts='3'")
    assert isinstance(found, Archive)
    assert found.source.starting == {"flights": {"0": 2**63 - 1, "1": -1}}
    assert found.restart.attempts == 3
    for wrong in ("1.5", "1e3", "0x1", "", "9" * 20, "١"):
        assert "expected a whole number" in problems(GOOD, f"restart.attempts='{wrong}'")[0]


def test_set_puts_a_value_over_what_the_file_says_and_says_itself_where_it_is_wrong() -> None:
    found = job(GOOD, "source.topics=[a, b]", "trigger.every=5 s", "to.path=elsewhere")
    assert isinstance(found, Archive)
    assert (found.source.topics, found.to.path) == (["a", "b"], "elsewhere")
    assert found.trigger.every == Duration(5_000)
    assert problems(GOOD, "source.brokers=x:y")[0].startswith("--set source.brokers:1:1: source.brokers: invalid boot")
    assert "write --set KEY.KEY=VALUE" in problems(GOOD, "source.brokers")[0]
    assert '"name" is not a mapping' in problems(GOOD, "name.x=1")[0]


def test_set_changes_no_other_place_that_has_the_same_anchor_and_fills_what_is_empty() -> None:
    shared = "name: a\nkind: archive\ncheckpoint: c\nto: {format: parquet, path: p}\nspark: &shared {a: 1}\nmetrics:\n"
    found = job(shared + "source: {brokers: 'h:1', topics: [t], options: *shared}\n", "spark.b=2", "metrics.port=9100")
    assert isinstance(found, Archive)
    assert (found.spark, found.source.options) == ({"a": 1, "b": 2}, {"a": 1})
    assert found.metrics is not None
    assert found.metrics.port == 9100


@pytest.mark.parametrize("assignment", ["name.password=hunter2", "source..password=hunter2"])
def test_an_argument_that_is_wrong_is_named_without_its_value(assignment: str) -> None:
    (told,) = problems(GOOD, assignment)
    assert "password" in told
    assert "hunter2" not in told


def test_names_with_dots_can_be_said_by_arguments() -> None:
    found = job(GOOD, "spark.spark.master=local[3]", "source.options.kafka.security.protocol=SSL")
    assert isinstance(found, Archive)
    assert found.spark == {"spark.master": "local[3]"}
    assert found.source.options["kafka.security.protocol"] == "SSL"
    assert "write --set KEY.KEY=VALUE" in problems(GOOD, "spark.=1")[0]


def test_a_job_can_be_said_by_arguments_alone() -> None:
    found = document.empty("--set")
    sets = ["kind=aggregate", "name=a", "source={brokers: 'h:1', topics: [t]}", "checkpoint=c", "time=x"]
    sets += ["watermark=1 hour", "window.length=1 hour", "select.n=count(*)", "to.format=console"]
    for assignment in sets:
        document.set_value(found, assignment)
    assert isinstance(document.build_job(found), Aggregate)


def test_a_date_and_a_number_are_text_where_text_is_wanted() -> None:
    found = job(GOOD.replace("topics: [flights]", "topics: [2013]\n  starting: 2013-01-01"))
    assert isinstance(found, Archive)
    assert found.source.topics == ["2013"]
    assert found.source.starting_ms() == 1_356_998_400_000


def test_an_equals_sign_by_itself_is_text_though_yaml_has_a_tag_for_it() -> None:
    found = job(GOOD.replace("topics: [flights]", "topics: [flights]\n  options: {kafka.client.id: =}"))
    assert isinstance(found, Archive)
    assert found.source.options == {"kafka.client.id": "="}


def test_options_are_what_was_written_whatever_number_yaml_makes_of_it() -> None:
    written = {"password": "0123456", "version": "1.10", "pin": "1_000", "since": "2013-01-01", "span": "1:30"}
    said = ", ".join(f"{name}: {value}" for name, value in written.items())
    found = job(GOOD, f"source.options={{{said}, count: 5, share: 0.5, flag: true}}")
    assert isinstance(found, Archive)
    assert found.source.options == {**written, "count": 5, "share": 0.5, "flag": True}


BIG = 9_223_372_036_854_775_807


def test_sql_and_settings_have_numbers_as_they_were_written() -> None:
    text = GOOD.replace("kind: archive", "kind: aggregate").replace("format: delta\n  path: lake/flights", "TO")
    text = text.replace("  TO", "  {format: topic, brokers: 'h:1', topic: t, create: {config: {retention.ms: MS}}}")
    for written in (str(BIG), "010", "1.10", "1e3", "1.0e+3", "0x1F", "1_000", "1:30", "-0", ".5"):
        more = f"time: timestamp\nwatermark: 1 hour\nemit: updates\nby: {{a: {written}}}\nselect: {{n: {written}}}\n"
        found = job(text.replace("MS", written) + more)
        assert isinstance(found, Aggregate)
        assert (found.by, found.select) == ({"a": written}, {"n": written})
        assert isinstance(found.to, TopicTarget)
        assert found.to.create is not None
        assert found.to.create.config == {"retention.ms": written}


def test_whole_numbers_are_as_large_as_what_they_are_for() -> None:
    found = job(GOOD, f"source.max_records_per_batch={BIG}", f"source.starting={{flights: {{0: {BIG}}}}}")
    assert isinstance(found, Archive)
    assert (found.source.max_records_per_batch, found.source.starting) == (BIG, {"flights": {"0": BIG}})
    assert reading.options(found.source)["startingOffsets"] == f'{{"flights": {{"0": {BIG}}}}}'
    assert reading.options(found.source)["maxOffsetsPerTrigger"] == str(BIG)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("source.max_records_per_batch=010", 'YAML reads "010" as 8; write a whole number in decimal digits'),
        ("restart.attempts=1:30", 'YAML reads "1:30" as 90; write a whole number'),
        ("restart.attempts=5.0", 'YAML reads "5.0" as 5.0; write a whole number'),
        ("to.file_size=0200000", 'YAML reads "0200000" as 65536; write a whole number'),
        (f"source.max_records_per_batch={BIG + 1}", f"{BIG + 1} is more than {BIG}"),
        (f"source.min_partitions={2**31}", f"{2**31} is more than {2**31 - 1}"),
        (f"source.starting={{flights: {{0: {BIG + 1}}}}}", f"invalid offset {BIG + 1}; use 0 to {BIG}"),
        (
            "to={format: topic, brokers: 'h:1', topic: t, create: {replication: 40000}}",
            "invalid replication factor 40000",
        ),
        ("to={format: topic, brokers: 'h:1', topic: t, create: {replication: 0}}", "invalid replication factor 0"),
    ],
)
def test_a_number_that_cannot_arrive_as_it_is_written_is_refused(assignment: str, expected: str) -> None:
    text = (
        GOOD.replace("kind: archive", "kind: dedup") + "by: {a: b}\nwithin: 1 hour\n"
        if "topic:" in assignment
        else GOOD
    )
    (told,) = problems(text, assignment)
    assert expected in told


def test_a_word_that_may_be_chosen_is_that_word_though_yaml_has_another_meaning_for_it() -> None:
    found = job(GOOD + "transform: {value: {format: json, schema: a int, on_error: null}}\n")
    assert isinstance(found, Archive)
    assert found.transform.value.on_error == "null"


@given(st.text(alphabet="abk:{}[]-&*!|>'\"\n #,?<0", max_size=80))
def test_whatever_stands_in_a_file_it_is_a_job_or_problems_with_places(text: str) -> None:
    found: list[Problem] = []
    try:
        job(GOOD + text)
    except InvalidJob as e:
        found = e.problems
    assert all(1 <= p.place.line <= (GOOD + text).count("\n") + 1 for p in found)


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_kind_needs_is_told(kind: str) -> None:
    assert "1:1: name: missing" in problems(f"kind: {kind}\n")


def test_a_pair_of_escapes_is_one_character_as_in_json() -> None:
    text = GOOD.replace("path: lake/flights", 'path: "lake/\\ud83d\\uDE00"').replace(
        "name: flights", "name: &n flights"
    )
    assert job(text).to.path == "lake/\U0001f600"


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00\\ud83d", "x\\udfffy"])
def test_half_a_pair_of_escapes_is_a_problem_at_its_place(escape: str) -> None:
    (found,) = problems(GOOD.replace("lake/flights", f'"{escape}"'))
    assert found == r'9:9: an escape from "\ud800" to "\udfff" stands alone; write the character itself'


def test_half_a_pair_of_escapes_is_a_problem_in_a_key_too() -> None:
    (found,) = problems(GOOD + 'config: {"\\udfff": 1}\n')
    assert "stands alone" in found


@pytest.mark.parametrize("tag", ["!!binary", "!!set", "!!omap", "!!python/object:os.system", "!mine"])
def test_a_tag_that_means_nothing_in_a_job_is_a_problem(tag: str) -> None:
    found = problems(GOOD.replace("name: ", f"name: {tag} "))
    assert any("is not supported; remove it" in problem for problem in found)
