package scenarios;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * The cluster as one scenario sees it: clients, fresh names, and an end that leaves nothing behind.
 *
 * <p>Settings of clients are given as name, value, name, value; what is not given stays the client's default.
 */
final class Cluster implements AutoCloseable {
    static final Duration POLL = Duration.ofMillis(100);

    final Admin admin;
    private final Map<String, String> common;
    private final List<String> topics = new ArrayList<>();
    private final List<Member> members = new ArrayList<>();

    /** {@code common} are settings of every client, among them the address. */
    Cluster(Map<String, String> common) {
        this.common = common;
        this.admin = Admin.create(settings());
    }

    Map<String, Object> settings(String... given) {
        Map<String, Object> all = new HashMap<>(common);
        for (int i = 0; i < given.length; i += 2) {
            all.put(given[i], given[i + 1]);
        }
        return all;
    }

    KafkaProducer<String, String> producer(String... given) {
        return new KafkaProducer<>(settings(given), new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<String, String> consumer(String... given) {
        return new KafkaConsumer<>(settings(given), new StringDeserializer(), new StringDeserializer());
    }

    Admin newAdmin(String... given) {
        return Admin.create(settings(given));
    }

    /** A process of its own that consumes as a member of a group; killed at the end of the scenario. */
    Member member(String group, String topic, String... given) throws Exception {
        Member member = Member.start(common, group, topic, given);
        members.add(member);
        return member;
    }

    List<String> memberWarnings() {
        return members.stream().flatMap(m -> m.warnings().stream()).collect(Collectors.toList());
    }

    String freshName() {
        return "java-" + UUID.randomUUID();
    }

    /** The name of a topic that will be deleted at the end, whoever creates it. */
    String topicName() {
        String name = freshName();
        created(name);
        return name;
    }

    /** Deletes a topic at the end. */
    void created(String topic) {
        topics.add(topic);
    }

    /** A new topic that has leaders, and as many replicas as the cluster gives by default. */
    String topic(int partitions, String... configs) throws Exception {
        String name = topicName();
        create(new NewTopic(name, partitions, (short) -1), configs);
        return name;
    }

    void create(NewTopic topic, String... configs) throws Exception {
        Map<String, String> values = new HashMap<>();
        for (int i = 0; i < configs.length; i += 2) {
            values.put(configs[i], configs[i + 1]);
        }
        get(admin.createTopics(List.of(topic.configs(values))).all());
        int count = topic.numPartitions() < 0 ? topic.replicasAssignments().size() : topic.numPartitions();
        waitForLeaders(topic.name(), count);
    }

    /** Brokers learn of a topic one after the other, so each leader is asked for something too. */
    void waitForLeaders(String topic, int partitions) throws Exception {
        Map<TopicPartition, OffsetSpec> asked = partitions(topic, partitions).stream()
                .collect(Collectors.toMap(p -> p, p -> OffsetSpec.latest()));
        Check.eventually("leaders of " + topic, () -> {
            try {
                var found = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic).partitions();
                return found.size() == partitions
                        && found.stream().allMatch(p -> p.leader() != null && !p.leader().isEmpty())
                        && get(admin.listOffsets(asked).all()).size() == partitions;
            } catch (ExecutionException e) {
                Check.that(e.getCause() instanceof UnknownTopicOrPartitionException, "asking the leaders: " + e);
                return false;
            }
        });
    }

    /** A future's result, within the limit. */
    static <T> T get(KafkaFuture<T> future)
            throws ExecutionException, InterruptedException, TimeoutException {
        return future.get(Check.LIMIT_MS, TimeUnit.MILLISECONDS);
    }

    static RecordMetadata send(KafkaProducer<String, String> producer, ProducerRecord<String, String> record)
            throws Exception {
        return producer.send(record).get(Check.LIMIT_MS, TimeUnit.MILLISECONDS);
    }

    /** Values {@code from..to-1}, as their decimal digits, into one partition. */
    void fill(String topic, int partition, int from, int to) throws Exception {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = from; i < to; i++) {
                producer.send(new ProducerRecord<>(topic, partition, "k" + i, "" + i));
            }
            producer.flush();
        }
        Check.that(end(topic, partition) >= to - from, "not all records of " + topic + " arrived");
    }

    static List<TopicPartition> partitions(String topic, int count) {
        return IntStream.range(0, count).mapToObj(p -> new TopicPartition(topic, p)).collect(Collectors.toList());
    }

    long end(String topic, int partition) {
        TopicPartition asked = new TopicPartition(topic, partition);
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(List.of(asked)); // or else the client warns about the answer to its own question
            return consumer.endOffsets(Set.of(asked)).get(asked);
        }
    }

    /** Everything that a consumer sees of a topic, by partition, in order. */
    Map<Integer, List<ConsumerRecord<String, String>>> readAll(String topic, String... given) {
        try (KafkaConsumer<String, String> consumer = consumer(given)) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition()))
                    .collect(Collectors.toList());
            consumer.assign(all);
            consumer.seekToBeginning(all);
            return readToEnd(consumer, all);
        }
    }

    /** Reads on from where the consumer stands until its position has reached the end as it was at the call. */
    static Map<Integer, List<ConsumerRecord<String, String>>> readToEnd(
            KafkaConsumer<String, String> consumer, Collection<TopicPartition> partitions) {
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        Map<Integer, List<ConsumerRecord<String, String>>> found = new LinkedHashMap<>();
        partitions.forEach(p -> found.put(p.partition(), new ArrayList<>()));
        long deadline = System.nanoTime() + Check.LIMIT_MS * 1_000_000;
        while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
            Check.that(System.nanoTime() < deadline, "never reached " + ends + ", read " + found);
            consumer.poll(POLL).forEach(r -> found.get(r.partition()).add(r));
        }
        return found;
    }

    static List<String> values(Iterable<ConsumerRecord<String, String>> records) {
        List<String> values = new ArrayList<>();
        records.forEach(r -> values.add(r.value()));
        return values;
    }

    static List<String> numbers(int from, int to) {
        return IntStream.range(from, to).mapToObj(Integer::toString).collect(Collectors.toList());
    }

    @Override
    public void close() throws ExecutionException, InterruptedException, TimeoutException {
        for (Member member : members) {
            member.kill();
        }
        try {
            if (topics.isEmpty()) {
                return;
            }
            Set<String> left = get(admin.listTopics().names());
            left.retainAll(topics);
            get(admin.deleteTopics(left).all());
        } finally {
            admin.close();
        }
    }
}
