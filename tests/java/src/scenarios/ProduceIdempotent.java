package scenarios;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;

/** An idempotent producer with each codec: every record once, in order, with key, value, headers and time unchanged. */
final class ProduceIdempotent implements Scenario {
    private static final int RECORDS = 300;
    private static final long FIRST_MS = System.currentTimeMillis() - 60_000;

    @Override
    public void run(Cluster cluster) throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = cluster.topic(2);
            produce(cluster, topic, codec);
            for (List<ConsumerRecord<String, String>> records : cluster.readAll(topic).values()) {
                compare(records, codec);
            }
            for (TopicPartition partition : Cluster.partitions(topic, 2)) {
                sequences(cluster, partition, codec);
            }
        }
    }

    private static void produce(Cluster cluster, String topic, String codec) throws Exception {
        try (KafkaProducer<String, String> producer = cluster.producer(
                "enable.idempotence", "true", "compression.type", codec, "batch.size", "4096", "linger.ms", "5",
                "max.in.flight.requests.per.connection", "5")) {
            var answers = new ArrayList<java.util.concurrent.Future<?>>();
            for (int i = 0; i < RECORDS; i++) {
                for (int partition = 0; partition < 2; partition++) {
                    var record = new ProducerRecord<>(topic, partition, FIRST_MS + i, "key-" + i, value(i));
                    record.headers().add("codec", codec.getBytes(StandardCharsets.UTF_8)).add("none", null);
                    answers.add(producer.send(record));
                }
            }
            for (var answer : answers) {
                answer.get();
            }
        }
    }

    private static String value(int i) {
        return i + "-" + "penstock ".repeat(i % 40);
    }

    private static void compare(List<ConsumerRecord<String, String>> records, String codec) {
        Check.equal(RECORDS, records.size(), "records with " + codec);
        for (int i = 0; i < RECORDS; i++) {
            ConsumerRecord<String, String> record = records.get(i);
            Check.equal((long) i, record.offset(), "offset with " + codec);
            Check.equal("key-" + i, record.key(), "key with " + codec);
            Check.equal(value(i), record.value(), "value with " + codec);
            Check.equal(FIRST_MS + i, record.timestamp(), "time with " + codec);
            Check.equal(TimestampType.CREATE_TIME, record.timestampType(), "kind of time with " + codec);
            byte[] header = record.headers().lastHeader("codec").value();
            Check.equal(codec, new String(header, StandardCharsets.UTF_8), "header");
            Check.that(record.headers().lastHeader("none").value() == null, "a header without a value has one");
        }
    }

    /** What the partition remembers of its producer. */
    private static void sequences(Cluster cluster, TopicPartition partition, String codec) throws Exception {
        List<ProducerState> states = Cluster.get(
                cluster.admin.describeProducers(List.of(partition)).partitionResult(partition)).activeProducers();
        Check.equal(1, states.size(), "producers known with " + codec);
        Check.equal(RECORDS - 1, states.get(0).lastSequence(), "last sequence with " + codec);
        Check.that(states.get(0).currentTransactionStartOffset().isEmpty(), "a transaction that nobody began");
    }
}
