package scenarios;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.utils.Utils;

/** Records of one key go to one partition, in the order in which they were sent; those without a key to any. */
final class ProduceKeyed implements Scenario {
    private static final int PARTITIONS = 6;
    private static final int KEYS = 50;
    private static final int ROUNDS = 20;

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(PARTITIONS);
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (int round = 0; round < ROUNDS; round++) {
                for (int key = 0; key < KEYS; key++) {
                    producer.send(new ProducerRecord<>(topic, "key-" + key, "" + round));
                    producer.send(new ProducerRecord<>(topic, "no key"));
                }
            }
        }
        Map<String, List<String>> seen = new HashMap<>();
        int without = 0;
        for (List<ConsumerRecord<String, String>> records : cluster.readAll(topic).values()) {
            for (ConsumerRecord<String, String> record : records) {
                if (record.key() == null) {
                    without++;
                    continue;
                }
                int hash = Utils.toPositive(Utils.murmur2(record.key().getBytes(StandardCharsets.UTF_8)));
                Check.equal(hash % PARTITIONS, record.partition(), "partition of " + record.key());
                seen.computeIfAbsent(record.key(), k -> new ArrayList<>()).add(record.value());
            }
        }
        Check.equal(KEYS * ROUNDS, without, "records without a key");
        Check.equal(KEYS, seen.size(), "keys");
        seen.forEach((key, values) -> Check.equal(Cluster.numbers(0, ROUNDS), values, "order of " + key));
    }
}
