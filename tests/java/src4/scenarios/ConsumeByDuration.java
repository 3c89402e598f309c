package scenarios;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** A consumer without a position begins with the records of the last hour (KIP-1106). */
final class ConsumeByDuration implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        TopicPartition partition = new TopicPartition(cluster.topic(1), 0);
        long now = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (int i = 0; i < 10; i++) {
                long time = now - (10 - i) * 600_000L + 60_000;
                Cluster.send(producer, new ProducerRecord<>(partition.topic(), 0, time, "k", "" + i));
            }
        }
        try (KafkaConsumer<String, String> consumer = cluster.consumer("auto.offset.reset", "by_duration:PT1H")) {
            consumer.assign(List.of(partition));
            List<String> read = new ArrayList<>();
            Check.eventually("the end", () -> {
                read.addAll(Cluster.values(consumer.poll(Cluster.POLL)));
                return consumer.position(partition) == 10;
            });
            Check.equal(Cluster.numbers(4, 10), read, "records of the last hour");
        }
    }
}
