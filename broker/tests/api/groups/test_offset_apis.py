"""OffsetCommit, OffsetFetch and OffsetDelete at every version, through the codec."""

from __future__ import annotations

import pytest

from penstock.group.reads import MAX_GROUPS
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import offset_delete as od
from penstock.wire.messages import offset_fetch as of

E = ErrorCode


@pytest.mark.parametrize("version", range(2, 11))
async def test_what_is_committed_is_fetched_in_every_version(broker, version):
    assert await broker.commit(version) == 0
    epoch = 3 if version >= 6 else -1
    for fetch_version in range(1, 11):
        found, error = await broker.fetch(fetch_version, {"t": [0, 1]})
        wanted_epoch = epoch if fetch_version >= 5 else -1
        assert found == {"t": {0: (7, wanted_epoch, "note", 0), 1: (-1, -1, "", 0)}}
        assert error == 0


@pytest.mark.parametrize("version", range(2, 11))
async def test_all_topics_are_fetched_where_none_is_named(broker, version):
    await broker.commit(5, "t", 1)
    await broker.commit(5, "u", 2, offset=0)
    epoch = -1
    found, _ = await broker.fetch(version, None)
    assert found == {"t": {1: (7, epoch, "note", 0)}, "u": {2: (0, epoch, "note", 0)}}
    assert await broker.fetch(version, None, "other") == ({}, 0)


@pytest.mark.parametrize("version", range(1, 11))
async def test_unknown_topics_have_no_offset_and_by_id_an_error(broker, version):
    found, error = await broker.fetch(version, {"nowhere": [0]})
    ((_, partitions),) = found.items()
    assert partitions == {0: (-1, -1, "", E.UNKNOWN_TOPIC_ID if version >= 10 else 0)}
    assert error == 0


@pytest.mark.parametrize("version", range(2, 11))
async def test_an_unknown_partition_is_named_before_an_error_of_the_group(broker, version):
    unknown = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    await broker.stable()
    stranger = {"member_id": "stranger", "generation_id_or_member_epoch": 1}
    assert await broker.commit(version, "nowhere", **stranger) == unknown
    assert await broker.commit(version, partition=3, **stranger) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit(version, **stranger) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_group_that_has_only_offsets_does_not_know_a_member(broker, version):
    assert await broker.commit(version, group_id="simple") == 0
    answer = await broker.commit(version, group_id="simple", member_id="m", generation_id_or_member_epoch=1)
    assert answer == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(2, 11))
async def test_commits_that_cannot_be_taken_name_the_reason(broker, version):
    unknown = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit(version, "nowhere") == unknown
    assert await broker.commit(version, partition=3) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit(version, partition=-1) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert await broker.commit(version, metadata="x" * 4097) == E.OFFSET_METADATA_TOO_LARGE
    assert await broker.commit(version, metadata="ä" * 2049) == E.OFFSET_METADATA_TOO_LARGE
    assert await broker.commit(version, metadata="x" * 4096) == 0
    assert await broker.commit(version, metadata=None) == 0
    assert await broker.commit(version, member_id="m", generation_id_or_member_epoch=5, group_id="x") == (
        E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION
    )
    assert (await broker.fetch(8, {"t": [0]}))[0] == {"t": {0: (7, 3 if version >= 6 else -1, "", 0)}}


@pytest.mark.parametrize("offset", [-1, -2, -(1 << 63)])
async def test_a_negative_offset_is_committed_and_fetched_as_it_is(broker, offset):
    assert await broker.commit(8, offset=offset) == 0
    found, _ = await broker.fetch(8, {"t": [0]})
    assert found == {"t": {0: (offset, 3, "note", 0)}}


@pytest.mark.parametrize("version", range(2, 11))
async def test_only_members_of_the_generation_commit(broker, version):
    member = await broker.stable()
    mine = {"member_id": member.member_id, "generation_id_or_member_epoch": 1}
    assert await broker.commit(version, **mine) == 0
    assert await broker.commit(version) == E.UNKNOWN_MEMBER_ID
    assert await broker.commit(version, **(mine | {"generation_id_or_member_epoch": 0})) == E.ILLEGAL_GENERATION
    if version >= 7:
        assert await broker.commit(version, **mine, group_instance_id="i") == E.UNKNOWN_MEMBER_ID


async def test_a_commit_that_does_not_become_durable_is_an_error(broker):
    await broker.groups._store.close()
    assert await broker.commit(9) == E.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", range(2, 5))
async def test_old_clients_choose_their_retention(broker, version):
    await broker.commit(version, retention_time_ms=1000)
    await broker.commit(version, partition=1)
    records = [record for _, record in broker.groups.offsets.table.group_offsets("g")]
    assert [r.expire_ms - r.commit_ms if r.expire_ms >= 0 else None for r in records] == [1000, None]


@pytest.mark.parametrize("version", range(1, 11))
async def test_before_the_start_and_after_the_end_offsets_are_somewhere_else(broker, version):
    await broker.groups.close()
    found, error = await broker.fetch(version, {"t": [0]})
    assert error == (0 if version < 2 else E.NOT_COORDINATOR)
    if version < 8:
        assert found["t"][0][3] == E.NOT_COORDINATOR


async def test_offsets_are_deleted(broker):
    await broker.commit(5)
    parts = [od.OffsetDeleteRequestPartition(partition_index=i) for i in (0, 1, 5)]
    topics = [od.OffsetDeleteRequestTopic(name="t", partitions=parts)]
    response = await broker.call(0, od.OffsetDeleteRequest(group_id="g", topics=topics))
    assert response.error_code == 0
    assert [p.error_code for p in response.topics[0].partitions] == [0, 0, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert (await broker.fetch(8, None))[0] == {}
    response = await broker.call(0, od.OffsetDeleteRequest(group_id="none", topics=topics))
    assert (response.error_code, response.topics) == (E.GROUP_ID_NOT_FOUND, [])
    response = await broker.call(0, od.OffsetDeleteRequest(group_id="", topics=topics))
    assert (response.error_code, response.topics) == (E.INVALID_GROUP_ID, [])


@pytest.mark.slow
async def test_a_request_that_names_more_groups_than_may_be_is_told_so_for_each(broker):
    names = [f"g{n}" for n in range(MAX_GROUPS + 1)]
    for version in range(8, 11):
        request = of.OffsetFetchRequest(groups=[of.OffsetFetchRequestGroup(group_id=name) for name in names])
        groups = (await broker.call(version, request)).groups
        assert [(g.group_id, g.error_code) for g in groups] == [(name, E.INVALID_REQUEST) for name in names]
