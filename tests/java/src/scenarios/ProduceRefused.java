package scenarios;

import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;

/** What a topic does not take is refused with its reason, and an idempotent producer goes on afterwards. */
final class ProduceRefused implements Scenario {
    private static final long DAY_MS = 86_400_000;

    @Override
    public void run(Cluster cluster) throws Exception {
        tooLarge(cluster);
        withoutKey(cluster);
        outOfTime(cluster);
    }

    private static void tooLarge(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "max.message.bytes", "2000");
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "0"));
            Check.refused(RecordTooLargeException.class, "a record above max.message.bytes",
                    () -> Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "x".repeat(3000))));
            Check.equal(1L, Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "1")).offset(), "next offset");
        }
        Check.equal(List.of("0", "1"), Cluster.values(cluster.readAll(topic).get(0)), "what was taken");
    }

    private static void withoutKey(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "cleanup.policy", "compact");
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            Check.refused(InvalidRecordException.class, "a record without a key in a compacted topic",
                    () -> Cluster.send(producer, new ProducerRecord<>(topic, 0, null, "v")));
            Check.equal(0L, Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "v")).offset(), "next offset");
        }
    }

    private static void outOfTime(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "message.timestamp.after.max.ms", "3600000",
                "message.timestamp.before.max.ms", "3600000");
        long now = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (long when : List.of(now + DAY_MS, now - DAY_MS)) {
                Check.refused(InvalidTimestampException.class, "a time out of bounds",
                        () -> Cluster.send(producer, new ProducerRecord<>(topic, 0, when, "k", "v")));
            }
            Check.equal(0L, Cluster.send(producer, new ProducerRecord<>(topic, 0, now, "k", "v")).offset(), "next");
        }
    }
}
