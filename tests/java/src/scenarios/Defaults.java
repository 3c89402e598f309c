package scenarios;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Clients with nothing set but what has no default: acks=all, idempotence, 16 KiB batches, telemetry, auto commit, the
 * group protocol's two assignors. The topic is created by asking for it; the second consumer names its rack.
 */
final class Defaults implements Scenario {
    private static final int RECORDS = 2000;

    @Override
    public List<String> expectedWarnings() {
        return List.of( // a topic that is just being created
                "Error while fetching metadata .*(UNKNOWN_TOPIC_OR_PARTITION|LEADER_NOT_AVAILABLE)",
                "The metadata response from the cluster reported a recoverable issue .*"
                        + "(UNKNOWN_TOPIC_OR_PARTITION|LEADER_NOT_AVAILABLE)",
                "Got error produce response .* retrying .*UNKNOWN_TOPIC_OR_PARTITION",
                "Received unknown topic or partition error in produce request .*");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topicName();
        String group = cluster.freshName();
        produce(cluster, topic, 0);
        Check.equal(wanted(0), consume(cluster, topic, group, "auto.offset.reset", "earliest"), "read by the first");
        produce(cluster, topic, RECORDS);
        Check.equal(wanted(RECORDS), consume(cluster, topic, group, "client.rack", "rack-a"), "read by the second");
    }

    private static void produce(Cluster cluster, String topic, int from) {
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (int i = from; i < from + RECORDS; i++) {
                producer.send(new ProducerRecord<>(topic, i + " " + "x".repeat(100)));
            }
        }
    }

    private static Set<Integer> wanted(int from) {
        Set<Integer> wanted = new HashSet<>();
        for (int i = from; i < from + RECORDS; i++) {
            wanted.add(i);
        }
        return wanted;
    }

    /** Closing commits what the last poll returned, so nothing is read twice by the group's next consumer. */
    private static Set<Integer> consume(Cluster cluster, String topic, String group, String name, String value)
            throws Exception {
        List<Integer> read = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group, name, value)) {
            consumer.subscribe(List.of(topic));
            try {
                Check.eventually("all records", () -> {
                    for (ConsumerRecord<String, String> record : consumer.poll(Cluster.POLL)) {
                        read.add(Integer.valueOf(record.value().split(" ")[0]));
                    }
                    return read.size() >= RECORDS;
                });
            } catch (AssertionError e) {
                throw new AssertionError(read.size() + " records read, " + state(consumer), e);
            }
            Check.equal(RECORDS, read.size(), "records read");
            Set<TopicPartition> assigned = consumer.assignment();
            Check.equal(consumer.partitionsFor(topic).size(), assigned.size(), "partitions assigned");
            // Where nothing was written yet, the consumer may still be asking for its position; without one, closing
            // commits none, and the group's next consumer would begin at the end.
            assigned.forEach(consumer::position);
        }
        return new HashSet<>(read);
    }

    /** Where a consumer that waits for records stands. */
    private static String state(KafkaConsumer<String, String> consumer) {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, Long> positions = new HashMap<>();
        for (TopicPartition partition : assigned) {
            positions.put(partition, consumer.position(partition));
        }
        return "positions " + positions + ", committed " + consumer.committed(assigned) + ", ends "
                + consumer.endOffsets(assigned);
    }
}
