package scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.PolicyViolationException;

/** Offsets by every kind of question, and records deleted from the beginning. */
final class AdminRecords implements Scenario {
    private static final long FIRST_MS = System.currentTimeMillis() - 100_000;
    private Cluster cluster;

    @Override
    public List<String> expectedWarnings() {
        return List.of("DeleteRecords request .* unexpected error (OFFSET_OUT_OF_RANGE|POLICY_VIOLATION)");
    }

    @Override
    public void run(Cluster given) throws Exception {
        cluster = given;
        TopicPartition filled = new TopicPartition(cluster.topic(1), 0);
        TopicPartition empty = new TopicPartition(cluster.topic(1), 0);
        long[] times = {0, 9, 3, 5}; // the largest is not the last
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (long time : times) {
                Cluster.send(producer, new ProducerRecord<>(filled.topic(), 0, FIRST_MS + time, "k", "" + time));
            }
        }
        offsets(filled, empty);
        deleted(filled);
    }

    private ListOffsetsResultInfo ask(TopicPartition partition, OffsetSpec what) throws Exception {
        return Cluster.get(cluster.admin.listOffsets(Map.of(partition, what)).partitionResult(partition));
    }

    private void offsets(TopicPartition filled, TopicPartition empty) throws Exception {
        Map<OffsetSpec, Long> wanted = new HashMap<>();
        wanted.put(OffsetSpec.earliest(), 0L);
        wanted.put(OffsetSpec.latest(), 4L);
        wanted.put(OffsetSpec.maxTimestamp(), 1L);
        wanted.put(OffsetSpec.forTimestamp(FIRST_MS + 4), 1L);
        wanted.put(OffsetSpec.forTimestamp(FIRST_MS + 10), -1L);
        wanted.put(OffsetSpec.earliestLocal(), 0L);
        wanted.put(OffsetSpec.latestTiered(), -1L);
        for (Map.Entry<OffsetSpec, Long> entry : wanted.entrySet()) {
            String what = entry.getKey().getClass().getSimpleName();
            Check.equal(entry.getValue(), ask(filled, entry.getKey()).offset(), what);
        }
        Check.equal(FIRST_MS + 9, ask(filled, OffsetSpec.maxTimestamp()).timestamp(), "the largest time");
        Check.equal(0L, ask(empty, OffsetSpec.latest()).offset(), "end of an empty partition");
        Check.equal(-1L, ask(empty, OffsetSpec.maxTimestamp()).offset(), "largest time of an empty partition");
        Check.that(ask(filled, OffsetSpec.latest()).leaderEpoch().isPresent(), "no leader epoch with the end");
    }

    private void deleted(TopicPartition partition) throws Exception {
        Check.equal(2L, delete(partition, 2), "low watermark");
        Check.equal(2L, ask(partition, OffsetSpec.earliest()).offset(), "first offset");
        Check.equal(List.of("3", "5"), Cluster.values(cluster.readAll(partition.topic()).get(0)), "what is left");
        Check.refused(OffsetOutOfRangeException.class, "deleting past the end", () -> delete(partition, 5));
        Check.equal(2L, delete(partition, 1), "low watermark after deleting less");
        Check.equal(4L, delete(partition, -1), "low watermark after deleting all");
        Check.equal(List.of(), cluster.readAll(partition.topic()).get(0), "what is left after deleting all");
        Check.equal(4L, cluster.end(partition.topic(), 0), "end after deleting all");
        TopicPartition compacted = new TopicPartition(cluster.topic(1, "cleanup.policy", "compact"), 0);
        Check.refused(PolicyViolationException.class, "deleting from a compacted topic", () -> delete(compacted, 0));
    }

    private long delete(TopicPartition partition, long before) throws Exception {
        var result = cluster.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(before)));
        return Cluster.get(result.lowWatermarks().get(partition)).lowWatermark();
    }
}
