package scenarios;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;

/** Records with a time of their own are delivered at it, once, in order, and others at once; a cancelled one is not. */
final class ScheduledRecords implements Scenario {
    private static final long DELAY_MS = 1_500;
    private static final long TOO_LONG_MS = 31L * 86_400_000;
    private static final List<String> AT_ONCE = List.of("plain", "end");
    private static final List<String> ALL = List.of("plain", "end", "1", "2", "3", "4");

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "delivery.schedule.enable", "true");
        long begunMs = System.currentTimeMillis();
        List<RecordMetadata> told = produce(cluster, topic);
        Check.equal(List.of(0L, 1L), told.stream().limit(2).map(RecordMetadata::offset).toList(), "offsets");
        check(read(cluster, topic, "group.protocol", "classic", "isolation.level", "read_committed"), begunMs);
        check(read(cluster, topic, "group.protocol", "consumer", "isolation.level", "read_uncommitted"), begunMs);
    }

    /** One batch with all records, so that the group of readers sees a control batch and deliveries of it. */
    private static List<RecordMetadata> produce(Cluster cluster, String topic) throws Exception {
        List<RecordMetadata> told = new ArrayList<>();
        try (KafkaProducer<String, String> producer = cluster.producer("linger.ms", "50")) {
            var sent = List.of(
                    producer.send(after("k", "1", DELAY_MS, topic)),
                    producer.send(after("k", "2", DELAY_MS, topic)),
                    producer.send(new ProducerRecord<>(topic, "p", "plain")),
                    producer.send(after("k", "3", DELAY_MS, topic)),
                    producer.send(after("c", "cancelled", DELAY_MS, topic)),
                    producer.send(with(new ProducerRecord<>(topic, "c", ""), "penstock-cancel-scheduled", "")),
                    producer.send(after("k", "4", DELAY_MS + 1, topic)),
                    producer.send(new ProducerRecord<>(topic, "p", "end")));
            for (var each : sent) {
                told.add(each.get());
            }
            InvalidRecordException refusal = Check.refused(InvalidRecordException.class, "a time too far ahead",
                    () -> producer.send(after("k", "never", TOO_LONG_MS, topic)).get());
            Check.that(refusal.getMessage().contains("penstock-deliver-after-ms"), "the reason: " + refusal);
        }
        return told;
    }

    private static ProducerRecord<String, String> after(String key, String value, long ms, String topic) {
        return with(new ProducerRecord<>(topic, key, value), "penstock-deliver-after-ms", "" + ms);
    }

    private static ProducerRecord<String, String> with(ProducerRecord<String, String> r, String name, String value) {
        r.headers().add(name, value.getBytes(StandardCharsets.UTF_8));
        return r;
    }

    /** What a group gets, and whatever comes in the second after that. */
    private static List<ConsumerRecord<String, String>> read(Cluster cluster, String topic, String... given)
            throws Exception {
        List<String> settings = new ArrayList<>(List.of(given));
        settings.addAll(List.of("group.id", cluster.freshName(), "auto.offset.reset", "earliest"));
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = cluster.consumer(settings.toArray(new String[0]))) {
            consumer.subscribe(List.of(topic));
            Check.eventually("all records", () -> {
                consumer.poll(Cluster.POLL).forEach(found::add);
                return found.size() >= ALL.size();
            });
            consumer.poll(Duration.ofSeconds(1)).forEach(found::add);
        }
        return found;
    }

    private static void check(List<ConsumerRecord<String, String>> found, long begunMs) {
        Check.equal(ALL, Cluster.values(found), "values in the order of their delivery");
        for (ConsumerRecord<String, String> each : found) {
            boolean isScheduled = each.headers().lastHeader("penstock-scheduled-offset") != null;
            Check.equal(!AT_ONCE.contains(each.value()), isScheduled && each.key().equals("k"), "origin of " + each);
            if (each.key().equals("k")) {
                Check.that(each.timestamp() >= begunMs + DELAY_MS, "delivered before its time: " + each);
            }
        }
    }
}
