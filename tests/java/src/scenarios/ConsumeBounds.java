package scenarios;

import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;

/** Records larger than a fetch may be are still read; polls are bounded; LogAppendTime is the broker's time. */
final class ConsumeBounds implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        largerThanAFetch(cluster);
        logAppendTime(cluster);
    }

    private static void largerThanAFetch(Cluster cluster) throws Exception {
        String topic = cluster.topic(3);
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (int i = 0; i < 9; i++) {
                Cluster.send(producer, new ProducerRecord<>(topic, i % 3, "k", i + "x".repeat(5000)));
            }
        }
        var read = cluster.readAll(topic, "fetch.max.bytes", "1000", "max.partition.fetch.bytes", "100");
        for (int partition = 0; partition < 3; partition++) {
            Check.equal(3, read.get(partition).size(), "records larger than a fetch in " + partition);
        }
        try (KafkaConsumer<String, String> consumer = cluster.consumer("max.poll.records", "2",
                "fetch.min.bytes", "1000000", "fetch.max.wait.ms", "50")) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            Check.eventually("the end, though less than fetch.min.bytes is there", () -> {
                ConsumerRecords<String, String> records = consumer.poll(Cluster.POLL);
                Check.that(records.count() <= 2, "more records than max.poll.records");
                return consumer.position(partition) == 3;
            });
        }
    }

    private static void logAppendTime(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        long told;
        try (KafkaProducer<String, String> producer = cluster.producer("compression.type", "gzip")) {
            told = Cluster.send(producer, new ProducerRecord<>(topic, 0, 1L, "k", "v")).timestamp();
        }
        long after = System.currentTimeMillis();
        Check.that(before <= told && told <= after, "the producer was told " + told + ", not the broker's time");
        var record = cluster.readAll(topic).get(0).get(0);
        Check.equal(TimestampType.LOG_APPEND_TIME, record.timestampType(), "kind of time");
        Check.equal(told, record.timestamp(), "time that the consumer reads");
    }
}
