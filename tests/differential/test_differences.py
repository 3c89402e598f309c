"""Comparison of answers, detection of differences, and their explanations; without a broker."""

from __future__ import annotations

import random
from argparse import Namespace
from uuid import UUID

import pytest
from penstock_differential import codec, explain
from penstock_differential.case import SEVERAL_FAULTS, Case, CaseEnded, Pending, Record, names_several
from penstock_differential.compare import ABSENT, PRESENT, Difference, compare
from penstock_differential.coverage import SERVED, Coverage
from penstock_differential.families import everything
from penstock_differential.families.world import fetch_tree, produce_tree, records
from penstock_differential.mutate import mutated
from penstock_differential.peers import GivenService
from penstock_differential.session import SHORT_CASES, Setup, last_case
from penstock_differential.sides import Answer, Route, Side
from penstock_differential.values import BatchSpec, Ref, Tree, printable, resolve

from penstock.wire.batch import checksum, read_header
from penstock.wire.schema import MalformedMessage


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side("penstock", GivenService(["127.0.0.1:1"])), Side("kafka", GivenService(["127.0.0.1:2"]))


def differences(sides: tuple[Side, Side], ours: object, theirs: object) -> list[Difference]:
    return compare(Answer(ours), Answer(theirs), sides)


def test_a_field_that_differs_is_named_with_the_element_it_belongs_to(sides: tuple[Side, Side]) -> None:
    ours = {"topics": [{"name": "b", "error_code": 0}, {"name": "a", "error_code": 3}]}
    theirs = {"topics": [{"name": "a", "error_code": 5}, {"name": "b", "error_code": 0}]}
    assert differences(sides, ours, theirs) == [Difference("topics.error_code", 3, 5, "name=a")]


def test_an_element_that_one_side_lacks_is_a_difference(sides: tuple[Side, Side]) -> None:
    ours, theirs = {"topics": [{"name": "a"}]}, {"topics": [{"name": "a"}, {"name": "a"}]}
    assert differences(sides, ours, theirs) == [Difference("topics[]", ABSENT, PRESENT, "name=a")]
    assert differences(sides, theirs, ours) == [Difference("topics[]", PRESENT, ABSENT, "name=a")]


def test_results_that_name_nothing_are_compared_in_the_order_of_the_request(sides: tuple[Side, Side]) -> None:
    ours, theirs = ({"results": [{"error_code": code} for code in codes]} for codes in ((0, 42), (42, 0)))
    assert differences(sides, ours, theirs) == [
        Difference("results.error_code", 0, 42, "position=0"),
        Difference("results.error_code", 42, 0, "position=1"),
    ]


def test_the_host_of_an_acl_is_compared_and_that_of_a_broker_is_not(sides: tuple[Side, Side]) -> None:
    def acl(host: str) -> Tree:
        return {"acls": [{"principal": "User:a", "host": host, "operation": 3, "permission_type": 3}]}

    assert differences(sides, acl("::1"), acl("*")) == [
        Difference("acls.host", "::1", "*", "principal=User:a,operation=3")
    ]
    assert not differences(sides, {"brokers": [{"host": "a"}]}, {"brokers": [{"host": "b"}]})


def test_an_epoch_is_not_taken_for_an_id_with_the_same_number(sides: tuple[Side, Side]) -> None:
    for side, producer_id in zip(sides, (3, 4), strict=True):
        side.assigned |= {"p": producer_id, "c-epoch": 7 - producer_id}
    assert not differences(sides, {"producer_id": 3, "member_epoch": 4}, {"producer_id": 4, "member_epoch": 3})
    assert differences(sides, {"member_epoch": 3}, {"member_epoch": 3}) == [
        Difference("member_epoch", "$other", "$c-epoch")
    ]


def test_the_id_of_a_named_topic_is_compared_and_identifies_no_element(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.assigned["id:t"] = UUID(int=10)
    ours, theirs = ({"responses": [{"topic_name": "t", "topic_id": UUID(int=number)}]} for number in (0, 10))
    assert differences(sides, ours, theirs) == [
        Difference("responses.topic_id", str(UUID(int=0)), "$id:t", "topic_name=t")
    ]


def test_assigned_ids_are_equal_where_they_stand_for_the_same(sides: tuple[Side, Side]) -> None:
    ids = UUID(int=10), UUID(int=11)
    for side, assigned in zip(sides, ids, strict=True):
        side.assigned["id:t"] = assigned
    assert not differences(sides, {"topic_id": ids[0]}, {"topic_id": ids[1]})
    assert differences(sides, {"topic_id": ids[0]}, {"topic_id": UUID(int=12)})
    assert differences(sides, {"topic_id": ids[0]}, {"topic_id": UUID(int=0)})


def test_a_message_must_be_there_where_kafka_has_one(sides: tuple[Side, Side]) -> None:
    assert not differences(sides, {"error_message": "one"}, {"error_message": "another"})
    assert not differences(sides, {"error_message": "one"}, {"error_message": None})
    assert differences(sides, {"error_message": None}, {"error_message": "one"})


def test_a_side_that_does_not_answer_differs_from_one_that_does(sides: tuple[Side, Side]) -> None:
    closed, answered = Answer(None, "closed"), Answer({"error_code": 0})
    assert compare(closed, answered, sides) == [Difference("connection", "closed", "answered")]
    assert not compare(closed, closed, sides)


def test_what_depends_on_a_different_error_follows_from_it() -> None:
    error = Difference("topics.partitions.error_code", 0, 1, "name=a index=0")
    assert Difference("topics.partitions.offset", 5, -1, "name=a index=0").follows_from(error)
    assert not Difference("topics.partitions.offset", 5, -1, "name=a index=1").follows_from(error)
    assert not Difference("topics.error_code", 5, -1, "name=a").follows_from(error)


def known(**more: object) -> explain.KnownDifference:
    entry = {"field": "error_code", "penstock": 0, "kafka": 1, "reason": "r", "kind": "deliberate", **more}
    return explain.KnownDifference(api="Fetch", **entry)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entry", "covers"),
    [
        ({}, True),
        ({"when": {"topics.partitions.partition": ">6"}}, True),
        ({"when": {"topics.partitions.partition": ">7"}}, False),
        ({"named_twice": True}, False),
        ({"after": "something happened"}, False),
        ({"beside": 7}, False),
        ({"element": ["name=a", "name=b"]}, False),
        ({"kafka": [2, 1]}, True),
        ({"kafka": "*"}, True),
        ({"kafka": 2}, False),
        ({"versions": (5, 9)}, False),
        ({"field": "*_code"}, True),
        ({"field": "topics.error_code"}, False),
        ({"when": {"topics.partitions.partition": 7}}, True),
        ({"when": {"topics.partitions.partition": [8, 9]}}, False),
        ({"when": {"topics.#": 1}}, True),
        ({"when": {"forgotten.partitions": "[]"}}, True),
    ],
)
def test_a_known_difference_covers_what_matches_in_every_respect(entry: dict[str, object], covers: bool) -> None:
    request = {"topics": [{"partitions": [{"partition": 7}]}], "forgotten": [{"partitions": []}]}
    assert known(**entry).covers("Fetch", 4, request, Difference("error_code", 0, 1)) is covers


def test_an_element_without_its_array_names_nothing() -> None:
    entry = known(names_nothing=True)
    request = {"topics": [{"topic": ".", "partitions": [{"partition": 0}]}, {"topic": "."}]}
    assert entry.covers("Fetch", 4, request, Difference("error_code", 0, 1))
    assert not entry.covers("Fetch", 4, {"topics": request["topics"][:1]}, Difference("error_code", 0, 1))


def test_every_known_difference_has_a_reason_and_an_api() -> None:
    entries = explain.load()
    assert {one.api for one in entries} <= {*SERVED, "*"}
    assert all(one.kind in explain.KINDS for one in entries)


def test_every_served_api_has_a_family_of_cases() -> None:
    assert set(SERVED) == {api for one in everything().values() for api in one.apis}


@pytest.mark.parametrize("version", range(4, 19))
def test_changed_requests_can_be_encoded_in_every_version(version: int) -> None:
    rng = random.Random(version)
    for _ in range(200):
        tree = mutated("Fetch", version, fetch_tree("t"), rng)
        codec.request_frame("Fetch", version, resolve(tree, {}))


def test_a_change_leaves_the_given_request_as_it_is() -> None:
    tree = fetch_tree("t")
    before = repr(tree)
    for seed in range(50):
        mutated("Fetch", 12, tree, random.Random(seed))
    assert repr(tree) == before


def test_a_batch_has_the_ids_of_its_side_and_a_right_checksum() -> None:
    spec = BatchSpec(records(2), producer_id=Ref("p"), producer_epoch=Ref("e", 1), header={"record_count": 9})
    batch = resolve(produce_tree("t", {0: spec}), {"p": 7, "e": 3})["topic_data"][0]["partition_data"][0]["records"]
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (7, 4, 9)
    assert header.crc == checksum(memoryview(batch), 0, len(batch))


def test_a_response_to_another_request_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        codec.response_tree("Heartbeat", 0, b"\0\0\0\1\0\0")


def test_coverage_names_versions_without_a_pair() -> None:
    coverage = Coverage()
    coverage.add("Heartbeat", 0, {0}, {25})
    assert "Heartbeat 0" not in coverage.missing({})
    assert "Heartbeat 1" in coverage.missing({})
    assert "| Heartbeat | v0:1 | 0:1 | 25:1 |" in coverage.report({})


@pytest.mark.parametrize(
    ("request_tree", "is_twice"),
    [
        ({"topics": [{"name": "a"}, {"name": "b"}]}, False),
        ({"topics": [{"name": "a"}, {"name": "a", "count": 2}]}, True),
        ({"topics": [{"name": "a", "partitions": [{"partition_index": 0, "offset": 1}, {}]}]}, True),
        ({"topics": [{"name": "a", "partitions": [{"partition_index": 1, "offset": 1}, {}]}]}, False),
        ({"groups": ["g", "g"]}, True),
        ({"records": [{"value": 1}, {"value": 1}]}, False),
    ],
)
def test_a_request_names_something_twice_where_keys_are_equal(request_tree: Tree, is_twice: bool) -> None:
    assert explain.names_twice(request_tree) is is_twice
    assert known(named_twice=True).covers("Fetch", 4, request_tree, Difference("error_code", 0, 1)) is is_twice


@pytest.mark.parametrize(
    ("request_tree", "is_empty"),
    [
        ({"topics": [{"name": "a", "partitions": [0]}]}, False),
        ({"topics": [{"name": "a", "partitions": []}]}, True),
        ({"topics": [{"name": "a", "partitions": [{}]}]}, True),
        ({"topics": [{"name": "a", "partitions": [0]}, {"name": "b"}]}, True),
        ({"topics": None}, False),
    ],
)
def test_a_request_names_nothing_where_an_array_or_an_element_is_empty(request_tree: Tree, is_empty: bool) -> None:
    assert explain.names_nothing(request_tree) is is_empty
    assert known(names_nothing=True).covers("Fetch", 4, request_tree, Difference("error_code", 0, 1)) is is_empty


def test_the_length_of_a_text_may_be_a_condition_whether_or_not_it_is_shortened() -> None:
    for length, is_covered in ((249, False), (250, True), (3000, True)):
        tree = printable({"topics": [{"name": "x" * length}]})
        assert known(when={"topics.name.size": ">249"}).covers("Fetch", 4, tree, Difference("error_code", 0, 1)) is (
            is_covered
        )


def test_an_entry_may_name_several_fields() -> None:
    entry = known(field=["error_code", "topics[]"])
    assert entry.covers("Fetch", 4, {}, Difference("error_code", 0, 1))
    assert known(field=["topics[]"], penstock=PRESENT, kafka=ABSENT).covers(
        "Fetch", 4, {}, Difference("topics[]", PRESENT, ABSENT)
    )
    assert not entry.covers("Fetch", 4, {}, Difference("topics.error_code", 0, 1))


def test_a_request_with_several_changes_is_noted_for_its_own_answer_only(sides: tuple[Side, Side]) -> None:
    case = Case("label", "prefix", random.Random(1), sides, Record([]))
    case.note_faults(1)
    assert SEVERAL_FAULTS not in case.features
    case.note_faults(2)
    assert SEVERAL_FAULTS in case.features


def test_a_feature_of_a_request_explains_its_own_answer_only(sides: tuple[Side, Side]) -> None:
    case = Case("label", "d1x1", random.Random(1), sides, Record([known(after="a feature")]))
    pending = Pending("Fetch", 4, {}, Route(), "main", [])
    answers = [Answer({"error_code": 0}), Answer({"error_code": 1})]
    case.features.add("a feature")
    assert not case._differences(pending, answers)[1]
    with pytest.raises(CaseEnded):
        case._judge(Pending("Produce", 4, {}, Route(), "main", []), answers)
    assert case._differences(pending, answers)[1]


def test_families_about_acls_run_on_services_with_an_authorizer_only() -> None:
    for one in everything().values():
        assert Setup.AUTHORIZER.plays(one) is one.has_authorizer
        assert Setup.ALONE.plays(one) is not one.has_authorizer
    assert [one.name for one in everything().values() if one.has_authorizer] == ["acls"]


def test_what_other_cases_have_left_is_no_difference(sides: tuple[Side, Side]) -> None:
    case = Case("label", "d1x23", random.Random(1), sides, Record([]))
    pending = Pending("ListGroups", 5, {}, Route(), "main", [])
    groups = [{"group_id": name, "group_state": "Empty"} for name in ("d1x23-g", "d1x2-g", "äd1x230-g")]
    answers = [Answer({"groups": groups}), Answer({"groups": []})]
    assert [one.element for one in case._differences(pending, answers)[1]] == ["group_id=d1x23-g"]


def test_a_request_for_things_of_several_brokers_is_not_held_against_the_one_that_it_went_to(
    sides: tuple[Side, Side],
) -> None:
    case = Case("label", "d1x1", random.Random(1), sides, Record(explain.load()))
    answers = [Answer({"results": [{"group_id": "g", "error_code": code}]}) for code in (0, 16)]
    for is_spread in (False, True):
        pending = Pending("DeleteGroups", 1, {"groups_names": ["g", "h"]}, Route(), "main", [], is_spread)
        assert bool(case._differences(pending, answers)[1]) is not is_spread
    assert names_several({"groups": ["g", "h"]})
    assert not names_several({"topics": [{"partitions": [{"index": 0}]}]})


def test_names_that_a_request_creates_keep_the_prefix_of_their_case() -> None:
    for seed in range(200):
        tree = {"topics": [{"name": "case-1", "num_partitions": 1, "replication_factor": 1}]}
        changed = mutated("CreateTopics", 4, tree, random.Random(seed), fields={"name"})
        names = [topic.get("name", "") for topic in changed["topics"]]
        assert all("case-1" in name or name in ("", "x" * 3000) for name in names)


def test_an_explanation_may_need_an_earlier_event_and_an_error_in_the_same_element(sides: tuple[Side, Side]) -> None:
    difference = Difference("error_code", 0, 1)
    assert known(after="a marker").covers("Fetch", 4, {}, difference, {"a marker"})
    ours = {"topics": [{"name": "a", "error_code": 1, "high_watermark": 5}]}
    theirs = {"topics": [{"name": "a", "error_code": 1, "high_watermark": -1}]}
    (found,) = differences(sides, ours, theirs)
    entry = known(field="topics.high_watermark", penstock=5, kafka=-1, beside=[1, 3])
    assert entry.covers("Fetch", 4, {}, found)
    assert not known(field="topics.high_watermark", penstock=5, kafka=-1, beside=3).covers("Fetch", 4, {}, found)


def test_readers_are_shown_neither_faults_nor_what_the_run_itself_causes() -> None:
    entries = [known(kind=kind) for kind in explain.KINDS]
    assert [entry.kind for entry in explain.shown(entries)] == ["deliberate", "unbuilt"]


def test_a_short_run_ends_after_a_number_of_cases_and_another_one_only_if_it_names_one() -> None:
    for setup, number in SHORT_CASES.items():
        assert last_case(Namespace(short=True, cases=None), setup) == number
    long = Namespace(short=False, cases=7)
    assert [last_case(long, setup) for setup in Setup] == [7, None, None]
    assert last_case(Namespace(short=False, cases=None), Setup.ALONE) is None
