package scenarios;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetMetadataTooLarge;

/** Commits with metadata, synchronous and not, by members and by consumers that assign themselves. */
final class GroupCommits implements Scenario {
    private TopicPartition first;
    private TopicPartition second;

    @Override
    public List<String> expectedWarnings() {
        return List.of( // the member that is thrown out of its group
                "Offset commit failed on partition .* The coordinator is not aware of this member",
                "Offset commit failed on partition .* The metadata field of the offset request was too large");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        first = new TopicPartition(topic, 0);
        second = new TopicPartition(topic, 1);
        cluster.fill(topic, 0, 0, 50);
        cluster.fill(topic, 1, 0, 50);
        alone(cluster);
        member(cluster);
        thrownOut(cluster);
    }

    /** A group without members takes commits from anybody. */
    private void alone(Cluster cluster) {
        String group = cluster.freshName();
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group)) {
            consumer.assign(List.of(first));
            Check.equal(Map.of(), withoutNulls(consumer.committed(Set.of(first, second))), "nothing committed");
            var wanted = Map.of(first, new OffsetAndMetadata(20, Optional.of(0), "why 20"),
                    second, new OffsetAndMetadata(30, ""));
            consumer.commitSync(wanted);
            Check.equal(wanted, consumer.committed(Set.of(first, second)), "committed");
            Check.equal(20L, consumer.position(first), "position where the commit says");
            Check.refused(OffsetMetadataTooLarge.class, "5,000 characters of metadata", () -> {
                consumer.commitSync(Map.of(first, new OffsetAndMetadata(21, "x".repeat(5000))));
                return "a commit";
            });
            Check.equal(wanted, consumer.committed(Set.of(first, second)), "committed after a refusal");
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> withoutNulls(Map<TopicPartition, OffsetAndMetadata> given) {
        Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>(given);
        found.values().removeIf(v -> v == null);
        return found;
    }

    private void member(Cluster cluster) throws Exception {
        String group = cluster.freshName();
        try (KafkaConsumer<String, String> consumer = joined(cluster, group)) {
            Cluster.readToEnd(consumer, List.of(first, second));
            AtomicReference<Object> told = new AtomicReference<>();
            consumer.commitAsync(Map.of(first, new OffsetAndMetadata(10, "async")),
                    (offsets, error) -> told.set(error == null ? offsets : error));
            consumer.commitSync(Map.of(second, new OffsetAndMetadata(11, "sync")));
            Check.equal(Map.of(first, new OffsetAndMetadata(10, "async")), told.get(),
                    "what the callback was told before a later synchronous commit returned");
            Check.refused(CommitFailedException.class, "a commit from outside of an active group",
                    () -> commitFromOutside(cluster, group));
        }
        try (KafkaConsumer<String, String> next = joined(cluster, group)) {
            var rest = Cluster.readToEnd(next, List.of(first, second));
            Check.equal(Cluster.numbers(10, 50), Cluster.values(rest.get(0)), "first partition, resumed");
            Check.equal(Cluster.numbers(11, 50), Cluster.values(rest.get(1)), "second partition, resumed");
        }
    }

    private Object commitFromOutside(Cluster cluster, String group) {
        try (KafkaConsumer<String, String> outsider = cluster.consumer("group.id", group)) {
            outsider.assign(List.of(first));
            outsider.commitSync(Map.of(first, new OffsetAndMetadata(49)));
            return "a commit";
        }
    }

    private void thrownOut(Cluster cluster) throws Exception {
        String group = cluster.freshName();
        try (KafkaConsumer<String, String> consumer = joined(cluster, group)) {
            Cluster.readToEnd(consumer, List.of(first, second));
            Cluster.get(cluster.admin.removeMembersFromConsumerGroup(
                    group, new RemoveMembersFromConsumerGroupOptions()).all());
            Check.refused(CommitFailedException.class, "a commit by a member that was removed", () -> {
                consumer.commitSync();
                return "a commit";
            });
            Check.eventually("joined again", () -> {
                consumer.poll(Cluster.POLL);
                return consumer.assignment().size() == 2 && consumer.groupMetadata().generationId() > 0;
            });
            Cluster.readToEnd(consumer, List.of(first, second));
            consumer.commitSync();
            Check.equal(50L, consumer.committed(Set.of(first)).get(first).offset(), "committed after joining again");
        }
    }

    private KafkaConsumer<String, String> joined(Cluster cluster, String group) throws Exception {
        KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group, "enable.auto.commit", "false",
                "auto.offset.reset", "earliest", "heartbeat.interval.ms", "20000", "session.timeout.ms", "30000",
                "max.poll.records", "1");
        consumer.subscribe(List.of(first.topic()));
        long deadline = System.nanoTime() + Check.LIMIT_MS * 1_000_000;
        while (consumer.assignment().size() < 2) {
            Check.that(System.nanoTime() < deadline, "never joined " + group);
            consumer.poll(java.time.Duration.ZERO);
        }
        for (TopicPartition partition : consumer.assignment()) {
            var committed = consumer.committed(Set.of(partition)).get(partition);
            consumer.seek(partition, committed == null ? 0 : committed.offset());
        }
        return consumer;
    }
}
