package scenarios;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** A member of a group copies a topic in a transaction that includes its offsets, with the rights of these alone. */
final class SecuredCopy implements Scenario {
    private static final int COUNT = 20;

    /** The producer adds the group's offsets while its records are under way, which then wait for the coordinator. */
    @Override
    public List<String> expectedWarnings() {
        return List.of("Got error produce response .* NOT_ENOUGH_REPLICAS.* a change of this one stored");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String source = cluster.topic(1);
        String target = cluster.topic(1);
        String group = cluster.freshName();
        cluster.fill(source, 0, 0, COUNT);
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group,
                        "auto.offset.reset", "earliest", "enable.auto.commit", "false");
                KafkaProducer<String, String> producer = cluster.producer("transactional.id", cluster.freshName())) {
            consumer.subscribe(List.of(source));
            producer.initTransactions();
            producer.beginTransaction();
            Check.eventually("all of the source", () -> {
                ConsumerRecords<String, String> records = consumer.poll(Cluster.POLL);
                records.forEach(r -> {
                    values.add(r.value());
                    producer.send(new ProducerRecord<>(target, 0, r.key(), r.value()));
                });
                return values.size() == COUNT;
            });
            producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(source, 0), new OffsetAndMetadata(COUNT)), consumer.groupMetadata());
            producer.commitTransaction();
        }
        Check.equal(Cluster.numbers(0, COUNT), values, "consumed");
        Check.equal(Cluster.numbers(0, COUNT),
                Cluster.values(cluster.readAll(target, "isolation.level", "read_committed").get(0)), "copied");
        var committed = Cluster.get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        Check.equal((long) COUNT, committed.get(new TopicPartition(source, 0)).offset(), "committed offset");
    }
}
