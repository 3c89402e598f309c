package scenarios;

import java.time.Duration;
import java.util.List;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.GroupAuthorizationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.errors.TransactionalIdAuthorizationException;

/** What the user may not do is refused with the exception that names it. */
final class RefusedRights implements Scenario {
    private static final String FORBIDDEN = "forbidden";

    @Override
    public List<String> expectedWarnings() {
        return List.of("TOPIC_AUTHORIZATION_FAILED", "authorization", "Authorization", "not authorized");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            Check.refused(TopicAuthorizationException.class, "producing",
                    () -> Cluster.send(producer, new ProducerRecord<>(FORBIDDEN, "v")));
        }
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", FORBIDDEN)) {
            Check.refused(TransactionalIdAuthorizationException.class, "a transaction", () -> {
                producer.initTransactions();
                return null;
            });
        }
        String own = cluster.topic(1);
        Check.refused(TopicAuthorizationException.class, "a topic",
                () -> consume(cluster, FORBIDDEN, cluster.freshName()));
        Check.refused(GroupAuthorizationException.class, "a group", () -> consume(cluster, own, FORBIDDEN));
        Check.refused(TopicAuthorizationException.class, "a new topic",
                () -> Cluster.get(cluster.admin.createTopics(List.of(new NewTopic("other", 1, (short) 1))).all()));
        Check.that(!Cluster.get(cluster.admin.listTopics().names()).contains(FORBIDDEN), "the topic is listed");
    }

    private static int consume(Cluster cluster, String topic, String group) {
        try (KafkaConsumer<String, String> consumer = cluster.consumer("group.id", group)) {
            consumer.subscribe(List.of(topic));
            return consumer.poll(Duration.ofMillis(Check.LIMIT_MS)).count();
        }
    }
}
