package scenarios;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** The cluster as one check sees it. All clients are closed at the end of the check. */
final class GroupWorld implements AutoCloseable {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final String[] SOON = {"metadata.max.age.ms", "500", "reconnect.backoff.ms", "20"};

    final Cluster cluster;
    final Admin admin;
    private final List<AutoCloseable> open = new ArrayList<>();

    GroupWorld(String bootstrap, String name) {
        cluster = new Cluster(Map.of("bootstrap.servers", bootstrap, "client.id", name));
        admin = cluster.admin;
    }

    // Groups and their settings

    /** A share group that starts with the first record, with further settings. */
    String shareGroup(String... settings) throws Exception {
        String group = cluster.freshName();
        configure(group, "share.auto.offset.reset", "earliest");
        configure(group, settings);
        return group;
    }

    void configure(String group, String... settings) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        for (int i = 0; i < settings.length; i += 2) {
            AlterConfigOp.OpType how = settings[i + 1] == null ? AlterConfigOp.OpType.DELETE : AlterConfigOp.OpType.SET;
            changes.add(new AlterConfigOp(new ConfigEntry(settings[i], settings[i + 1]), how));
        }
        if (!changes.isEmpty()) {
            Cluster.get(admin.incrementalAlterConfigs(Map.of(resource(group), changes)).all());
        }
    }

    static ConfigResource resource(String group) {
        return new ConfigResource(ConfigResource.Type.GROUP, group);
    }

    /** Runs what may fail for a moment after a change that brokers learn of one after the other. */
    <T> T retry(Callable<T> action) throws Exception {
        List<T> result = new ArrayList<>();
        Exception[] last = new Exception[1];
        try {
            Check.eventually("success", () -> {
                try {
                    result.add(action.call());
                    return true;
                } catch (java.util.concurrent.ExecutionException e) {
                    last[0] = e;
                    return false;
                }
            });
        } catch (AssertionError e) {
            throw new AssertionError(e.getMessage(), last[0]);
        }
        return result.get(0);
    }

    // Records

    /** Values {@code from..to-1} into partition 0, in one batch. */
    void fill(String topic, int from, int to) throws Exception {
        fill(topic, 0, from, to);
    }

    void fill(String topic, int partition, int from, int to, String... settings) throws Exception {
        String[] all = Arrays.copyOf(new String[] {"linger.ms", "20000"}, settings.length + 2);
        System.arraycopy(settings, 0, all, 2, settings.length);
        try (KafkaProducer<String, String> producer = cluster.producer(all)) {
            var answers = new ArrayList<java.util.concurrent.Future<?>>();
            for (int i = from; i < to; i++) {
                answers.add(producer.send(new ProducerRecord<>(topic, partition, "k" + i, "" + i)));
            }
            producer.flush();
            for (var answer : answers) {
                answer.get();
            }
        }
    }

    String filled(int records) throws Exception {
        String topic = cluster.topic(1);
        fill(topic, 0, records);
        return topic;
    }

    // Share consumers

    KafkaShareConsumer<String, String> share(String group, String topic, String... given) {
        KafkaShareConsumer<String, String> made = unsubscribed(group, given);
        made.subscribe(List.of(topic));
        return made;
    }

    KafkaShareConsumer<String, String> unsubscribed(String group, String... given) {
        Map<String, Object> all = settings(given);
        all.put("group.id", group);
        var made = new KafkaShareConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        open.add(made);
        return made;
    }

    KafkaShareConsumer<String, String> explicit(String group, String topic, String... given) {
        KafkaShareConsumer<String, String> made = unsubscribed(group, with(given, "share.acknowledgement.mode", "explicit"));
        made.subscribe(List.of(topic));
        return made;
    }

    private static String[] with(String[] given, String... more) {
        String[] all = Arrays.copyOf(given, given.length + more.length);
        System.arraycopy(more, 0, all, given.length, more.length);
        return all;
    }

    Map<String, Object> settings(String... given) {
        Map<String, Object> all = cluster.settings(SOON);
        all.putAll(cluster.settings(given));
        return all;
    }

    /** The records of the first poll that returns some. */
    static List<ConsumerRecord<String, String>> next(KafkaShareConsumer<String, String> consumer) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        Check.eventually("records", () -> {
            consumer.poll(POLL).forEach(found::add);
            return !found.isEmpty();
        });
        return found;
    }

    /** Polls until {@code count} records were returned; each poll acknowledges the records before by {@code type}. */
    static List<ConsumerRecord<String, String>> take(
            KafkaShareConsumer<String, String> consumer, int count, AcknowledgeType type) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        try {
            Check.eventually(count + " records", () -> {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    found.add(record);
                    if (type != null) {
                        consumer.acknowledge(record, type);
                    }
                }
                return found.size() >= count;
            });
        } catch (AssertionError e) {
            throw new AssertionError(e.getMessage() + "; there are " + found, e);
        }
        return found;
    }

    static List<ConsumerRecord<String, String>> take(KafkaShareConsumer<String, String> consumer, int count)
            throws Exception {
        return take(consumer, count, null);
    }

    /** Commits; fails if an acknowledgement did. */
    static void commit(KafkaShareConsumer<String, String> consumer) {
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
            Check.that(each.getValue().isEmpty(), each.getKey() + ": " + each.getValue());
        }
    }

    static List<Long> offsets(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::offset).sorted().collect(Collectors.toList());
    }

    static Set<Integer> counts(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(r -> (int) r.deliveryCount().orElseThrow()).collect(Collectors.toCollection(TreeSet::new));
    }

    /** Fails unless a new member of the group gets these records next, of a topic whose next value is {@code next}. */
    void expectNext(String group, String topic, int next, List<Long> offsets) throws Exception {
        fill(topic, next, next + 1);
        List<Long> wanted = new ArrayList<>(offsets);
        wanted.add((long) next);
        var found = take(explicit(group, topic), wanted.size(), AcknowledgeType.ACCEPT);
        Check.equal(wanted, offsets(found), "records for the next member");
    }

    static Set<Long> starts(Admin admin, String group) throws Exception {
        return ShareOffsetChecks.offsets(admin, group).values().stream()
                .map(info -> info.startOffset()).collect(Collectors.toSet());
    }

    // Consumers

    KafkaConsumer<String, String> consumer(String group, String... given) {
        Map<String, Object> all = settings("group.protocol", "consumer", "auto.offset.reset", "earliest");
        all.putAll(cluster.settings(given));
        all.put("group.id", group);
        all.values().removeIf(""::equals);
        var made = new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        open.add(made);
        return made;
    }

    KafkaConsumer<String, String> member(String group, String topic, String... given) {
        KafkaConsumer<String, String> made = consumer(group, given);
        made.subscribe(List.of(topic));
        return made;
    }

    /** Polls all consumers in turn until the condition holds. Returns what they read. */
    @SafeVarargs
    static List<ConsumerRecord<String, String>> pollUntil(
            String what, Callable<Boolean> condition, KafkaConsumer<String, String>... consumers) throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        Check.eventually(what, () -> {
            for (KafkaConsumer<String, String> consumer : consumers) {
                consumer.poll(Duration.ofMillis(40)).forEach(found::add);
            }
            return condition.call();
        });
        return found;
    }

    /** Polls until the consumers have these numbers of partitions. */
    @SafeVarargs
    static void pollUntilSizes(List<Integer> sizes, KafkaConsumer<String, String>... consumers) throws Exception {
        pollUntil("assignments of " + sizes, () -> {
            for (int i = 0; i < sizes.size(); i++) {
                if (consumers[i].assignment().size() != sizes.get(i)) {
                    return false;
                }
            }
            return true;
        }, consumers);
    }

    static Set<Integer> numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).collect(Collectors.toCollection(TreeSet::new));
    }

    /** Closes a consumer of the check before its end. */
    void close(AutoCloseable client) throws Exception {
        open.remove(client);
        client.close();
    }

    <T extends AutoCloseable> T opened(T client) {
        open.add(client);
        return client;
    }

    @Override
    public void close() throws Exception {
        try {
            for (AutoCloseable client : open) {
                client.close();
            }
        } finally {
            cluster.close();
        }
    }

    static Map<String, String> map(String... given) {
        Map<String, String> all = new HashMap<>();
        for (int i = 0; i < given.length; i += 2) {
            all.put(given[i], given[i + 1]);
        }
        return all;
    }
}
