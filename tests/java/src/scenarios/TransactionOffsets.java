package scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Read, transform, write, with offsets in the transaction: aborts take both back, so each record arrives once. */
final class TransactionOffsets implements Scenario {
    private static final int RECORDS = 60;

    @Override
    public void run(Cluster cluster) throws Exception {
        String in = cluster.topic(1);
        String out = cluster.topic(1);
        String group = cluster.freshName();
        TopicPartition source = new TopicPartition(in, 0);
        cluster.fill(in, 0, 0, RECORDS);
        int aborted = 0;
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group, "enable.auto.commit", "false",
                        "auto.offset.reset", "earliest", "isolation.level", "read_committed", "max.poll.records", "10");
                KafkaProducer<String, String> producer = cluster.producer("transactional.id", cluster.freshName())) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            long deadline = System.nanoTime() + Check.LIMIT_MS * 1_000_000;
            for (int done = 0; position(consumer, source) < RECORDS; ) {
                Check.that(System.nanoTime() < deadline, "never came: all records");
                boolean abort = done % 2 == 1;
                if (step(consumer, producer, out, abort)) {
                    done++;
                    aborted += abort ? 1 : 0;
                }
            }
        }
        Check.that(aborted > 0, "nothing was aborted");
        Check.eventually("every record", () -> committed(cluster, out).size() >= RECORDS);
        Check.equal(Cluster.numbers(0, RECORDS), committed(cluster, out), "each record once");
        Check.that(cluster.readAll(out).get(0).size() > RECORDS, "aborted records are not in the log");
    }

    private static long position(KafkaConsumer<String, String> consumer, TopicPartition source) {
        OffsetAndMetadata committed = consumer.committed(Set.of(source)).get(source);
        return committed == null ? 0 : committed.offset();
    }

    private static List<String> committed(Cluster cluster, String topic) {
        return TransactionCommit.committed(cluster, topic).get(0);
    }

    /** One transaction; whether there was anything to do. */
    private static boolean step(KafkaConsumer<String, String> consumer, KafkaProducer<String, String> producer,
            String out, boolean abort) {
        var records = consumer.poll(Cluster.POLL);
        if (records.isEmpty()) {
            return false;
        }
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        Map<TopicPartition, Long> back = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            TopicPartition partition = new TopicPartition(record.topic(), record.partition());
            producer.send(new ProducerRecord<>(out, 0, record.key(), record.value()));
            next.put(partition, new OffsetAndMetadata(record.offset() + 1));
            back.putIfAbsent(partition, record.offset());
        }
        producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
        if (abort) {
            producer.flush(); // or else the client aborts by not sending them
            producer.abortTransaction();
            back.forEach(consumer::seek);
        } else {
            producer.commitTransaction();
        }
        return true;
    }
}
