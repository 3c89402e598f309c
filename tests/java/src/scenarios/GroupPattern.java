package scenarios;

import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/** A subscription by pattern takes up topics as they come, and lets go of them as they are deleted. */
final class GroupPattern implements Scenario {
    @Override
    public List<String> expectedWarnings() {
        return List.of("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "unknown topic or partition",
                "Received unknown topic");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String first = cluster.topic(2);
        String second = cluster.topicName();
        Pattern both = Pattern.compile(Pattern.quote(first) + "|" + Pattern.quote(second));
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", cluster.freshName(),
                "enable.auto.commit", "false", "metadata.max.age.ms", "200",
                "heartbeat.interval.ms", "200", "session.timeout.ms", "6000")) {
            consumer.subscribe(both);
            awaitTopics(consumer, Set.of(first));
            cluster.create(new NewTopic(second, 1, (short) -1));
            awaitTopics(consumer, Set.of(first, second));
            Cluster.get(cluster.admin.deleteTopics(List.of(first)).all());
            awaitTopics(consumer, Set.of(second));
        }
    }

    private static void awaitTopics(KafkaConsumer<String, String> consumer, Set<String> wanted) throws Exception {
        Check.eventually("partitions of " + wanted, () -> {
            consumer.poll(Cluster.POLL);
            return consumer.assignment().stream().map(TopicPartition::topic).collect(Collectors.toSet()).equals(wanted);
        });
    }
}
