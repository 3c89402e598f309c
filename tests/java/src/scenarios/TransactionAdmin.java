package scenarios;

import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/** Transactions as an administrator sees them, and one that outlives its timeout: the coordinator aborts it. */
final class TransactionAdmin implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        String id = cluster.freshName();
        try (KafkaProducer<String, String> producer =
                cluster.producer("transactional.id", id, "transaction.timeout.ms", "4000")) {
            producer.initTransactions();
            producer.beginTransaction();
            Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "left open"));
            TransactionDescription open = describe(cluster, id);
            Check.equal(TransactionState.ONGOING, open.state(), "state");
            Check.equal(4000L, open.transactionTimeoutMs(), "timeout");
            Check.equal(Set.of(partition), open.topicPartitions(), "partitions");
            Check.that(listed(cluster).contains(id), "the transaction is not listed");
            var states = Cluster.get(cluster.admin.describeProducers(List.of(partition)).partitionResult(partition));
            Check.equal(0L, states.activeProducers().get(0).currentTransactionStartOffset().orElse(-1), "its start");
            Check.eventually("the coordinator's abort",
                    () -> describe(cluster, id).state() == TransactionState.COMPLETE_ABORT);
        }
        Check.equal(List.of(), TransactionCommit.committed(cluster, topic).get(0), "committed");
        Check.equal(2L, cluster.end(topic, 0), "end with the marker");
        Check.refused(TransactionalIdNotFoundException.class, "describing nobody's transaction",
                () -> describe(cluster, cluster.freshName()));
    }

    private static TransactionDescription describe(Cluster cluster, String id) throws Exception {
        return Cluster.get(cluster.admin.describeTransactions(List.of(id)).all()).get(id);
    }

    private static Set<String> listed(Cluster cluster) throws Exception {
        return Cluster.get(cluster.admin.listTransactions().all()).stream()
                .map(TransactionListing::transactionalId).collect(Collectors.toSet());
    }
}
