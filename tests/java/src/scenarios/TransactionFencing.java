package scenarios;

import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** A second producer of the same transactional id aborts what the first left open, and fences it. */
final class TransactionFencing implements Scenario {
    @Override
    public List<String> expectedWarnings() {
        return List.of("ProducerFencedException", "InvalidProducerEpochException", "fenced", "newer producer",
                "Transiting to (fatal|abortable) error state", "old epoch");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String id = cluster.freshName();
        try (KafkaProducer<String, String> old = cluster.producer("transactional.id", id);
                KafkaProducer<String, String> heir = cluster.producer("transactional.id", id)) {
            old.initTransactions();
            old.beginTransaction();
            Cluster.send(old, new ProducerRecord<>(topic, 0, "k", "left open"));
            heir.initTransactions();
            fenced("a send of the fenced producer",
                    () -> Cluster.send(old, new ProducerRecord<>(topic, 0, "k", "too late")));
            fenced("a commit of the fenced producer", () -> {
                old.commitTransaction();
                return "committed";
            });
            heir.beginTransaction();
            Cluster.send(heir, new ProducerRecord<>(topic, 0, "k", "from the heir"));
            heir.commitTransaction();
            adminFences(cluster, heir, id, topic);
        }
        Check.eventually("only what was committed",
                () -> TransactionCommit.committed(cluster, topic).get(0).equals(List.of("from the heir")));
        Check.equal(List.of("left open", "from the heir", "of the second"),
                Cluster.values(cluster.readAll(topic).get(0)), "with what was aborted");
    }

    private static void fenced(String what, java.util.concurrent.Callable<?> action) {
        KafkaException refusal = Check.refused(KafkaException.class, what, action);
        Throwable cause = refusal;
        while (cause != null && !(cause instanceof ProducerFencedException)
                && !(cause instanceof InvalidProducerEpochException)) {
            cause = cause.getCause();
        }
        Check.that(cause != null, what + " failed otherwise: " + refusal);
    }

    private static void adminFences(Cluster cluster, KafkaProducer<String, String> producer, String id, String topic)
            throws Exception {
        producer.beginTransaction();
        Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "of the second"));
        Cluster.get(cluster.admin.fenceProducers(List.of(id)).all());
        fenced("a commit after the admin client fenced the producer", () -> {
            producer.commitTransaction();
            return "committed";
        });
    }
}
