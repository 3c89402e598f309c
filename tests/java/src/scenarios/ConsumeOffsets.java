package scenarios;

import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Seeking to offsets and times, also into the middle of a compressed batch, pausing, and positions out of range. */
final class ConsumeOffsets implements Scenario {
    private static final int RECORDS = 100;
    private static final long STEP_MS = 1000;
    private final long firstMs = System.currentTimeMillis() - RECORDS * STEP_MS;
    private TopicPartition filled;
    private TopicPartition empty;

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        filled = new TopicPartition(topic, 0);
        empty = new TopicPartition(topic, 1);
        fill(cluster);
        try (KafkaConsumer<String, String> consumer = cluster.consumer("max.poll.records", "7")) {
            consumer.assign(List.of(filled, empty));
            ends(consumer);
            times(consumer);
            seeking(consumer);
            pausing(consumer);
        }
        outOfRange(cluster);
    }

    /** Ten batches of ten, compressed. */
    private void fill(Cluster cluster) {
        try (KafkaProducer<String, String> producer =
                cluster.producer("compression.type", "lz4", "linger.ms", "1000")) {
            for (int i = 0; i < RECORDS; i++) {
                producer.send(new ProducerRecord<>(filled.topic(), 0, firstMs + i * STEP_MS, "k", "" + i));
                if (i % 10 == 9) {
                    producer.flush();
                }
            }
        }
    }

    private void ends(KafkaConsumer<String, String> consumer) {
        List<TopicPartition> both = List.of(filled, empty);
        Check.equal(Map.of(filled, 0L, empty, 0L), consumer.beginningOffsets(both), "beginning");
        Check.equal(Map.of(filled, 100L, empty, 0L), consumer.endOffsets(both), "end");
    }

    private void times(KafkaConsumer<String, String> consumer) {
        long[][] wanted = {
            {0, 0}, {firstMs, 0}, {firstMs + 36_500, 37}, {firstMs + 37_000, 37}, {firstMs + 99_000, 99}
        };
        for (long[] pair : wanted) {
            OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(filled, pair[0])).get(filled);
            Check.equal(pair[1], found.offset(), "offset at " + (pair[0] - firstMs) + " ms");
            Check.equal(firstMs + pair[1] * STEP_MS, found.timestamp(), "time at " + (pair[0] - firstMs) + " ms");
        }
        var none = consumer.offsetsForTimes(Map.of(filled, firstMs + 99_001, empty, 0L));
        Check.that(none.get(filled) == null, "an offset after the last time: " + none);
        Check.that(none.get(empty) == null, "an offset in an empty partition: " + none);
    }

    private void seeking(KafkaConsumer<String, String> consumer) throws Exception {
        for (int offset : List.of(37, 99, 0, 50)) {
            consumer.seek(filled, offset);
            Check.equal((long) offset, first(consumer).offset(), "first record after seeking to " + offset);
        }
        consumer.seekToEnd(List.of(filled));
        Check.equal(100L, consumer.position(filled), "position at the end");
        consumer.seekToBeginning(List.of(filled));
        Check.equal(0L, consumer.position(filled), "position at the beginning");
        Check.equal(Cluster.numbers(0, RECORDS),
                Cluster.values(Cluster.readToEnd(consumer, List.of(filled)).get(0)), "everything");
        Check.equal(OptionalLong.of(0), consumer.currentLag(filled), "lag at the end");
    }

    private void pausing(KafkaConsumer<String, String> consumer) throws Exception {
        consumer.seekToBeginning(List.of(filled));
        consumer.pause(List.of(filled));
        for (int i = 0; i < 5; i++) {
            Check.that(consumer.poll(Cluster.POLL).isEmpty(), "a paused partition returned records");
        }
        consumer.resume(List.of(filled));
        Check.equal(0L, first(consumer).offset(), "first record after resuming");
    }

    private static ConsumerRecord<String, String> first(KafkaConsumer<String, String> consumer) throws Exception {
        ConsumerRecord<?, ?>[] found = new ConsumerRecord<?, ?>[1];
        Check.eventually("a record", () -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Cluster.POLL)) {
                found[0] = found[0] == null ? record : found[0];
            }
            return found[0] != null;
        });
        @SuppressWarnings("unchecked")
        ConsumerRecord<String, String> record = (ConsumerRecord<String, String>) found[0];
        return record;
    }

    private void outOfRange(Cluster cluster) throws Exception {
        Cluster.get(cluster.admin.deleteRecords(Map.of(filled, RecordsToDelete.beforeOffset(25))).all());
        try (KafkaConsumer<String, String> strict = cluster.consumer("auto.offset.reset", "none")) {
            strict.assign(List.of(filled));
            Check.refused(NoOffsetForPartitionException.class, "no position", () -> strict.poll(Cluster.POLL));
            for (long offset : new long[] {3, 101}) {
                strict.seek(filled, offset);
                var refusal = Check.refused(OffsetOutOfRangeException.class, "offset " + offset, () -> first(strict));
                Check.equal(Map.of(filled, offset), refusal.offsetOutOfRangePartitions(), "what was out of range");
            }
        }
        Map<String, Integer> resets = Map.of("earliest", 25, "latest", 100);
        for (Map.Entry<String, Integer> reset : resets.entrySet()) {
            try (KafkaConsumer<String, String> lenient = cluster.consumer("auto.offset.reset", reset.getKey())) {
                lenient.assign(List.of(filled));
                lenient.seek(filled, 3);
                List<String> read = new java.util.ArrayList<>();
                Check.eventually("the end after a reset to " + reset, () -> {
                    read.addAll(Cluster.values(lenient.poll(Cluster.POLL)));
                    return lenient.position(filled) == RECORDS;
                });
                Check.equal(Cluster.numbers(reset.getValue(), RECORDS), read, "read after a reset to " + reset);
            }
        }
    }
}
