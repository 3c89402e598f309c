"""Requests to brokers and the use of their responses, without brokers and without Spark."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from penstock.client import TopicPartition
from penstock_spark.link.ports import FetchSizes, TopicPartitions
from penstock_spark.model.errors import DataLoss, InvalidOption, Unavailable
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_COMMITTED, Fetched, OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.source import batch, stream
from penstock_spark.source.stream import StreamReader

GIVEN = {"kafka.bootstrap.servers": "a:1", "subscribe": "t", "fetchOffset.retryIntervalMs": "0"}
OLD, NEW = UUID(int=1), UUID(int=2)
ALL = ReadAllAvailable()


class Cluster:
    """A double of the link. Partitions of topics as (first offset, end); `asked` counts requests for end offsets."""

    def __init__(self, **topics: list[tuple[int, int]]) -> None:
        self.parts = {TopicPartition(t, p): one for t, parts in topics.items() for p, one in enumerate(parts)}
        self.ids = dict.fromkeys(topics, OLD)
        self.times: dict[int, int] = {}
        self.stale: list[dict[TopicPartition, int]] = []
        self.isolations: set[int] = set()
        self.known: Mapping[str, TopicPartitions] = {}
        self.lagging: list[dict[str, TopicPartitions]] = []
        """Responses to the next requests for topics."""
        self.all_say: dict[TopicPartition, tuple[int, int]] | None = None
        """Partitions that a query of all brokers returns, if the single broker has outdated ones."""
        self.confirmed: list[bool] = []
        self.vanishing: set[TopicPartition] = set()
        """Partitions that disappear after each lookup."""
        self.coming = 0
        """Number of records that are appended to each partition right after a request by timestamp."""
        self.hidden_parts: dict[TopicPartition, int] = {}
        """Hidden partitions, with the offset of a consumer that has read all of them."""

    def topics(
        self, names: Iterable[str] | None, known: Mapping[str, TopicPartitions], *, confirmed: bool = False
    ) -> Mapping[str, TopicPartitions]:
        self.known = known
        self.confirmed.append(confirmed)
        if confirmed and self.all_say is not None:
            self.parts = self.all_say
        if self.lagging:
            return self.lagging.pop(0)
        wanted = {one.topic for one in self.parts} if names is None else set(names)
        counts = {name: sum(one.topic == name for one in self.parts) for name in wanted}
        return {name: TopicPartitions(name, self.ids.get(name), count) for name, count in counts.items() if count}

    def hidden(self, topics: Iterable[str]) -> Mapping[TopicPartition, int]:
        return {one: drained for one, drained in self.hidden_parts.items() if one.topic in topics}

    def offsets(self, wanted: Mapping[TopicPartition, int], isolation: int) -> Mapping[TopicPartition, int]:
        self.isolations.add(isolation)
        found = {}
        for one, what in wanted.items():
            if one in self.parts and one not in self.vanishing:
                first, end = self.parts[one]
                found[one] = {EARLIEST: first, LATEST: end}.get(what, self.times.get(what, -1))
                if what >= 0:
                    self.parts[one] = (first, end + self.coming)
        if self.stale and set(wanted.values()) == {LATEST}:
            found |= self.stale.pop(0)
        return found

    def fetch(self, range_: OffsetRange, isolation: int, sizes: FetchSizes, topic_id: UUID | None) -> Iterator[Fetched]:
        raise AssertionError("planning fetches nothing")

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, tuple[int, str]]:
        raise AssertionError("planning asks for no group")

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        raise AssertionError("planning commits nothing")

    def run(self, work: Any) -> Any:
        raise AssertionError("planning has enough with the link's own calls")

    def close(self) -> None: ...


def planned(cluster: Cluster, **options: str) -> list[tuple[str, int, int, int]]:
    return [tuple(one.range_) for one in batch.plan(cluster, SourceOptions.parse(GIVEN | options, streaming=False))]


class Reader(StreamReader):
    def __init__(self, cluster: Cluster, **options: str) -> None:
        super().__init__(SourceOptions.parse(GIVEN | options, streaming=True))
        self.cluster = cluster

    def _link(self) -> Cluster:
        return self.cluster

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int, int]]:
        return [tuple(one.value.range_) for one in self.partitions(start, end)]


def at(*offsets: int, id_: UUID = OLD, **more: Any) -> dict[str, Any]:
    return {"t": {str(number): offset for number, offset in enumerate(offsets)}, "@topics": {"t": str(id_)}, **more}


class TestBatches:
    def test_everything_is_read_but_empty_partitions(self) -> None:
        assert planned(Cluster(t=[(0, 5), (3, 9), (7, 7)])) == [("t", 0, 0, 5), ("t", 1, 3, 9)]

    def test_only_committed_records_count_where_they_are_asked_for(self) -> None:
        cluster = Cluster(t=[(0, 5)])
        planned(cluster, **{"kafka.isolation.level": "read_committed"})
        assert cluster.isolations == {READ_COMMITTED}

    def test_a_time_without_a_record_is_an_error_at_the_beginning_and_the_end_at_the_end(self) -> None:
        cluster = Cluster(t=[(0, 5)])
        cluster.times = {100: 2}
        assert planned(cluster, startingTimestamp="100", endingTimestamp="999") == [("t", 0, 2, 5)]
        with pytest.raises(InvalidOption, match=r'no record is as new .*topic "t", partition 0: 999'):
            planned(cluster, startingTimestamp="999")
        assert planned(cluster, startingTimestamp="999", startingOffsetsByTimestampStrategy="latest") == []

    def test_what_comes_after_the_question_for_a_time_is_not_read_without_one(self) -> None:
        """A record that arrives after the request may be newer than the requested end timestamp."""
        cluster = Cluster(t=[(0, 5)])
        cluster.coming = 3
        assert planned(cluster, endingTimestamp="999") == [("t", 0, 0, 5)]
        latest = {"startingTimestamp": "999", "startingOffsetsByTimestampStrategy": "latest"}
        assert planned(cluster, **latest) == [("t", 0, 8, 11)]

    def test_a_partition_that_goes_while_it_is_planned_for_is_lost(self, caplog: pytest.LogCaptureFixture) -> None:
        cluster = Cluster(t=[(0, 5), (0, 6)])
        cluster.vanishing = {TopicPartition("t", 1)}
        with pytest.raises(DataLoss, match='"t", partition 1 existed when the query started, and no longer does'):
            planned(cluster)
        assert cluster.confirmed == [False, True, True]
        assert not caplog.text
        assert planned(cluster, failOnDataLoss="false") == [("t", 0, 0, 5)]
        assert "partition 1 existed" in caplog.text

    @pytest.mark.parametrize("retries", ["1", "3"])
    @pytest.mark.parametrize("wrong", [[(0, 5)], [(7, 20)]], ids=["its end", "its beginning"])
    def test_no_broker_is_believed_alone_that_offsets_are_not_there(
        self, wrong: list[tuple[int, int]], retries: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        cluster = Cluster(t=wrong)
        cluster.all_say = Cluster(t=[(0, 20)]).parts
        asked = {"startingOffsets": '{"t": {"0": 3}}', "endingOffsets": '{"t": {"0": 9}}'}
        found = planned(cluster, failOnDataLoss="false", **asked, **{"fetchOffset.numRetries": retries})
        assert found == [("t", 0, 3, 9)]
        assert not caplog.text
        assert cluster.known == {"t": TopicPartitions("t", OLD, 1)}

    def test_a_beginning_after_the_end_reads_nothing(self) -> None:
        cluster = Cluster(t=[(0, 9)])
        cluster.times = {1: 7, 2: 3}
        assert planned(cluster, startingTimestamp="1", endingTimestamp="2") == []

    def test_partitions_are_named_all_or_it_is_an_error(self) -> None:
        cluster = Cluster(t=[(0, 5), (0, 5)])
        with pytest.raises(InvalidOption, match=r'it lacks topic "t", partition 1 and it has topic "t", partition 4'):
            planned(cluster, startingOffsets='{"t": {"0": 1, "4": 1}}')
        with pytest.raises(InvalidOption, match='it lacks topic "t", partition 1'):
            planned(cluster, endingOffsets='{"t": {"0": 1}}')
        with pytest.raises(InvalidOption, match='it has topic "t", partition 2, which the query does not read'):
            planned(cluster, startingOffsetsByTimestamp='{"t": {"0": 1, "1": 1, "2": 1}}')

    def test_a_task_knows_which_topic_it_was_planned_for(self) -> None:
        (task,) = batch.plan(Cluster(t=[(0, 5)]), SourceOptions.parse(GIVEN, streaming=False))
        assert task.topic_id == OLD

    def test_a_pattern_may_match_nothing_but_a_name_must_be_there(self) -> None:
        options = {"kafka.bootstrap.servers": "a:1", "subscribePattern": "x"}
        assert batch.plan(Cluster(t=[(0, 5)]), SourceOptions.parse(options, streaming=False)) == []
        with pytest.raises(InvalidOption, match='"subscribe" names what does not exist: "t"'):
            planned(Cluster(u=[(0, 5)]))


class TestStreams:
    def test_a_first_batch_remembers_where_it_began(self) -> None:
        reader = Reader(Cluster(t=[(0, 5)]), startingOffsets="earliest")
        start = reader.initialOffset()
        assert start == {"@initial": True}
        end = reader.latestOffset(start, ALL)
        assert end == at(5, **{"@from": {"t": {"0": 0}}})
        assert reader.ranges(start, end) == [("t", 0, 0, 5)]

    def test_a_first_batch_that_is_repeated_begins_where_it_began(self) -> None:
        reader = Reader(Cluster(t=[(0, 9)]))
        end = at(5, **{"@from": {"t": {"0": 2}}})
        assert reader.ranges(reader.initialOffset(), end) == [("t", 0, 2, 5)]

    @pytest.mark.parametrize(
        "options",
        [
            {"startingTimestamp": "999"},
            {"startingOffsets": '{"t": {"0": 2}}'},
            {"subscribe": "t, u"},
            {"assign": '{"t": [0, 7]}', "subscribe": None},
        ],
        ids=["time", "offsets", "topic", "partition"],
    )
    def test_a_first_batch_is_repeated_though_a_new_query_could_not_begin(self, options: dict[str, str | None]) -> None:
        """Since then a partition was added, a topic deleted, or the records of that time expired."""
        given = {name: value for name, value in (GIVEN | options).items() if value is not None}
        reader = Reader(Cluster(t=[(0, 9), (0, 9)]))
        reader._options = SourceOptions.parse(given, streaming=True)
        start = reader.initialOffset()
        with pytest.raises(InvalidOption):
            reader.latestOffset(start, ALL)
        assert reader.ranges(start, at(5, **{"@from": {"t": {"0": 2}}})) == [("t", 0, 2, 5)]

    def test_a_first_batch_of_the_connector_that_is_repeated_begins_where_the_options_say(self) -> None:
        reader = Reader(Cluster(t=[(0, 9)]), startingOffsets='{"t": {"0": 2}}')
        assert reader.ranges(reader.initialOffset(), {"t": {"0": 5}}) == [("t", 0, 2, 5)]

    def test_a_batch_that_is_repeated_is_the_same_though_the_query_no_longer_selects_all_of_it(self) -> None:
        reader = Reader(Cluster(t=[(0, 9)], u=[(0, 9)]))
        start, end = ({"t": {"0": at}, "u": {"0": at}} for at in (2, 5))
        assert reader.ranges(start, end) == [("t", 0, 2, 5), ("u", 0, 2, 5)]

    def test_a_query_does_not_begin_without_a_partition_that_is_there(self) -> None:
        """The query would later treat it as new, and read it from its beginning."""
        cluster = Cluster(t=[(0, 9), (0, 6)])
        reader = Reader(cluster)
        cluster.vanishing = {TopicPartition("t", 1)}
        with pytest.raises(Unavailable, match="partition 1 existed when the query started"):
            reader.latestOffset(reader.initialOffset(), ALL)
        cluster.vanishing = set()
        assert reader.latestOffset(reader.initialOffset(), ALL)["@from"] == {"t": {"0": 9, "1": 6}}

    def test_the_offset_stays_the_same_where_nothing_is_new(self) -> None:
        """Spark compares the text of offsets: a different text would start a batch."""
        reader = Reader(Cluster(t=[(0, 5)]))
        for start in (at(5), at(5, **{"@from": {"t": {"0": 0}}})):
            assert reader.latestOffset(start, ALL) == start
            assert reader.partitions(start, start) == []

    def test_a_checkpoint_of_the_connector_goes_on(self) -> None:
        reader = Reader(Cluster(t=[(0, 5)]))
        assert reader.latestOffset({"t": {"0": 3}}, ALL) == at(5)
        assert reader.ranges({"t": {"0": 3}}, at(5)) == [("t", 0, 3, 5)]

    @pytest.mark.parametrize(
        ("options", "limit"),
        [
            ({}, ReadAllAvailable()),
            ({"maxOffsetsPerTrigger": "9"}, ReadMaxRows(9)),
            ({"minOffsetsPerTrigger": "9"}, ReadMinRows(9)),
        ],
    )
    def test_spark_is_told_of_limits(self, options: dict[str, str], limit: ReadLimit) -> None:
        assert Reader(Cluster(), **options).getDefaultReadLimit() == limit

    def test_sparks_wish_to_read_all_goes_before_limits(self) -> None:
        reader = Reader(Cluster(t=[(0, 50)]), maxOffsetsPerTrigger="10")
        assert reader.latestOffset(at(0), ReadMaxRows(10)) == at(10)
        assert reader.latestOffset(at(0), ALL) == at(50)

    def test_a_limit_counts_new_partitions_from_their_beginning(self) -> None:
        reader = Reader(Cluster(t=[(0, 10), (90, 100)]), maxOffsetsPerTrigger="10", failOnDataLoss="false")
        assert reader.latestOffset(at(0), ReadMaxRows(10)) == at(5, 95)

    def test_after_the_first_batch_too_little_data_waits(self) -> None:
        cluster = Cluster(t=[(0, 5)])
        reader = Reader(cluster, minOffsetsPerTrigger="4", maxTriggerDelay="1h")
        assert reader.latestOffset(at(4), ReadMinRows(4)) == at(5)
        cluster.parts[TopicPartition("t", 0)] = (0, 8)
        start = at(5, **{"@from": {"t": {"0": 4}}})
        assert reader.latestOffset(start, ReadMinRows(4)) == start
        cluster.parts[TopicPartition("t", 0)] = (0, 9)
        assert reader.latestOffset(at(5), ReadMinRows(4)) == at(9)

    def test_too_little_data_does_not_wait_longer_than_the_delay(self) -> None:
        reader = Reader(Cluster(t=[(0, 5)]), minOffsetsPerTrigger="4", maxTriggerDelay="0s")
        assert [reader.latestOffset(at(4), ReadMinRows(4)) for _ in range(2)] == [at(5), at(5)]

    def test_available_now_ends_where_the_topic_ended_when_it_began(self) -> None:
        cluster = Cluster(t=[(0, 5)])
        reader = Reader(cluster, maxOffsetsPerTrigger="3", minOffsetsPerTrigger="2")
        reader.prepareForTriggerAvailableNow()
        assert reader.latestOffset(at(0), ReadMaxRows(3)) == at(3)
        cluster.parts[TopicPartition("t", 0)] = (0, 900)
        cluster.parts[TopicPartition("t", 1)] = (0, 900)
        assert reader.latestOffset(at(3), ReadMaxRows(3)) == at(5)
        assert reader.latestOffset(at(5), ReadMaxRows(3)) == at(5)

    def test_what_spark_shows_as_latest_is_not_limited(self) -> None:
        reader = Reader(Cluster(t=[(0, 50)]), maxOffsetsPerTrigger="10")
        assert reader.reportLatestOffset() is None
        reader.latestOffset(at(0), ReadMaxRows(10))
        assert reader.reportLatestOffset() == at(50)

    def test_an_end_before_the_start_is_asked_for_again_before_it_is_a_loss(self) -> None:
        """A new leader may not know the old leader's end offset at first."""
        cluster = Cluster(t=[(0, 9)])
        reader = Reader(cluster)
        stale = {TopicPartition("t", 0): 6}
        cluster.stale = [stale, stale]
        assert reader.latestOffset(at(8), ALL) == at(9)
        cluster.stale = [stale, stale, stale]
        with pytest.raises(DataLoss, match="ends at offset 6, but was read up to offset 8"):
            reader.latestOffset(at(8), ALL)

    @pytest.mark.parametrize(
        ("lag", "said"),
        [
            ({}, "partition 0 no longer exists"),
            ({"t": TopicPartitions("t", OLD, 1)}, "partition 1 no longer exists; it had been read up to offset 5"),
            ({"t": TopicPartitions("t", NEW, 2)}, '"t" was deleted and created again'),
        ],
    )
    @pytest.mark.parametrize("fail", ["true", "false"])
    def test_what_is_missing_is_asked_for_again_before_it_is_a_loss(
        self, lag: dict[str, TopicPartitions], said: str, fail: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A broker's metadata may lag; existing rows must be neither skipped nor read twice."""
        cluster = Cluster(t=[(0, 9), (0, 6)])
        reader = Reader(cluster, failOnDataLoss=fail)
        cluster.lagging = [lag, lag]
        assert reader.latestOffset(at(8, 5), ALL) == at(9, 6)
        cluster.lagging = [lag, lag]
        assert reader.ranges(at(8, 5), at(9, 6)) == [("t", 0, 8, 9), ("t", 1, 5, 6)]
        assert not caplog.text
        for ask in (lambda: reader.latestOffset(at(8, 5), ALL), lambda: reader.partitions(at(8, 5), at(9, 6))):
            cluster.lagging = [lag, lag, lag]
            with pytest.raises(DataLoss, match=said) if fail == "true" else contextlib.nullcontext():
                ask()
        assert not cluster.lagging

    @pytest.mark.parametrize("retries", ["1", "3"])
    @pytest.mark.parametrize("fail", ["true", "false"])
    def test_no_broker_is_believed_alone_that_something_is_lost(
        self, fail: str, retries: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def with_one_that_says(parts: list[tuple[int, int]]) -> Reader:
            cluster = Cluster(t=parts)
            cluster.all_say = Cluster(t=[(0, 9)]).parts
            return Reader(cluster, failOnDataLoss=fail, **{"fetchOffset.numRetries": retries})

        for gone_or_short in ([], [(0, 6)]):
            assert with_one_that_says(gone_or_short).latestOffset(at(8), ALL) == at(9)
        for gone_or_late in ([], [(30, 40)]):
            assert with_one_that_says(gone_or_late).ranges(at(8), at(9)) == [("t", 0, 8, 9)]
        assert not caplog.text

    def test_brokers_are_asked_with_what_was_seen_before(self) -> None:
        cluster = Cluster(t=[(0, 9), (0, 6)])
        Reader(cluster).latestOffset(at(8, 5), ALL)
        assert cluster.known == {"t": TopicPartitions("t", OLD, 2)}
        cluster.known = {}
        Reader(cluster).partitions(at(8, 5), at(9, 6))
        assert cluster.known == {"t": TopicPartitions("t", OLD, 2)}
        options = {"kafka.bootstrap.servers": "a:1", "assign": '{"t": [1]}'}
        batch.plan(cluster, SourceOptions.parse(options, streaming=False))
        assert cluster.known == {"t": TopicPartitions("t", None, 2)}

    def test_a_log_that_was_cut_off_goes_on_at_its_end_where_that_is_allowed(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        reader = Reader(Cluster(t=[(0, 6)]), failOnDataLoss="false")
        with caplog.at_level(logging.WARNING):
            assert reader.latestOffset(at(8), ALL) == at(6)
        assert "ends at offset 6" in caplog.text
        assert reader.ranges(at(8), at(6)) == []

    def test_a_topic_made_anew_is_read_from_its_beginning_where_that_is_allowed(self) -> None:
        cluster = Cluster(t=[(0, 50)])
        cluster.ids["t"] = NEW
        with pytest.raises(DataLoss, match="deleted and created again"):
            Reader(cluster).latestOffset(at(8), ALL)
        reader = Reader(cluster, failOnDataLoss="false")
        end = reader.latestOffset(at(8), ALL)
        assert end == at(50, id_=NEW)
        assert reader.ranges(at(8), end) == [("t", 0, 0, 50)]

    def test_a_topic_made_anew_after_its_batch_was_planned_is_not_read_for_it(self) -> None:
        cluster = Cluster(t=[(0, 50)])
        cluster.ids["t"] = NEW
        with pytest.raises(DataLoss, match="deleted and created again"):
            Reader(cluster).partitions(at(3), at(8))
        assert Reader(cluster, failOnDataLoss="false").partitions(at(3), at(8)) == []

    @pytest.mark.parametrize(
        ("cluster", "start", "end", "said", "left"),
        [
            (Cluster(t=[(5, 9)]), at(3), at(8), "offsets 3 to 4 were deleted", [("t", 0, 5, 8)]),
            (Cluster(t=[(9, 9)]), at(3), at(8), "offsets 3 to 7 were deleted", []),
            (Cluster(t=[(0, 9)]), at(3, 1), at(8, 4), "partition 1 no longer exists", [("t", 0, 3, 8)]),
            (Cluster(t=[(0, 9), (2, 6)]), at(8), at(8, 6), "new to the query and starts at offset 2", [("t", 1, 2, 6)]),
        ],
    )
    def test_losses_are_found_when_a_batch_is_planned(
        self,
        cluster: Cluster,
        start: dict[str, Any],
        end: dict[str, Any],
        said: str,
        left: list[tuple[str, int, int, int]],
    ) -> None:
        with pytest.raises(DataLoss, match=said):
            Reader(cluster).partitions(start, end)
        assert Reader(cluster, failOnDataLoss="false").ranges(start, end) == left

    def test_new_partitions_that_begin_at_0_are_no_loss(self) -> None:
        reader = Reader(Cluster(t=[(0, 9), (0, 6)]))
        end = reader.latestOffset(at(9), ALL)
        assert reader.ranges(at(9), end) == [("t", 1, 0, 6)]

    def test_hidden_partitions_that_were_read_are_kept_without_asking_all_brokers(self) -> None:
        cluster = Cluster(t=[(0, 5), (0, 6)])
        reader = Reader(cluster)
        cluster.parts = Cluster(t=[(0, 8)]).parts
        cluster.hidden_parts = {TopicPartition("t", 1): 6}
        assert reader.latestOffset(at(5, 6), ALL) == at(8, 6)
        assert reader.ranges(at(5, 6), at(8, 6)) == [("t", 0, 5, 8)]
        assert reader.latestOffset(at(8, 6), ALL) == at(8, 6)
        assert cluster.known == {"t": TopicPartitions("t", OLD, 1)}
        assert cluster.confirmed == [False, False, False]
        cluster.parts = Cluster(t=[(0, 8), (0, 9)]).parts
        assert reader.latestOffset(at(8, 6), ALL) == at(8, 9)
        assert reader.ranges(at(8, 6), at(8, 9)) == [("t", 1, 6, 9)]

    def test_a_topic_that_is_named_and_not_there_is_warned_about_in_a_query_that_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        reader = Reader(Cluster(t=[(0, 9)]), subscribe="t, u")
        with caplog.at_level(logging.WARNING):
            reader.latestOffset(at(9), ALL)
        assert 'names what does not exist: "u"' in caplog.text

    def test_warnings_come_once_for_a_query(self, caplog: pytest.LogCaptureFixture) -> None:
        reader = Reader(Cluster(t=[(0, 9)]), **{"kafka.max.poll.records": "3"})
        with caplog.at_level(logging.WARNING):
            reader.latestOffset(at(9), ALL)
            reader.latestOffset(at(9), ALL)
        assert caplog.text.count("kafka.max.poll.records") == 1


def test_losses_beyond_a_number_are_counted() -> None:
    cluster = Cluster(t=[(1, 9)] * 30)
    with pytest.raises(DataLoss, match=r"partition 19: .* \(and 10 more\)"):
        stream.plan(
            cluster,
            SourceOptions.parse(GIVEN, streaming=True),
            stream.StreamOffset.from_json(at(*[0] * 30)),
            stream.StreamOffset.from_json(at(*[9] * 30)),
        )
