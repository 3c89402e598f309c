package scenarios;

import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;

/** Committed transactions over several partitions: invisible to read_committed before the commit, whole after it. */
final class TransactionCommit implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(3);
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", cluster.freshName())) {
            producer.initTransactions();
            for (int round = 0; round < 5; round++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    Cluster.send(producer, new ProducerRecord<>(topic, partition, "k", "" + round));
                }
                pending(cluster, topic, round);
                producer.commitTransaction();
                int done = round + 1;
                for (int partition = 0; partition < 3; partition++) {
                    int index = partition;
                    Check.eventually("round " + round + " in " + partition,
                            () -> committed(cluster, topic).get(index).equals(Cluster.numbers(0, done)));
                }
            }
        }
        // five records and five markers
        Check.equal(10L, cluster.end(topic, 0), "end with markers");
    }

    static Map<Integer, List<String>> committed(Cluster cluster, String topic) {
        Map<Integer, List<String>> found = new java.util.TreeMap<>();
        cluster.readAll(topic, "isolation.level", "read_committed").forEach((p, r) -> found.put(p, Cluster.values(r)));
        return found;
    }

    /** Read uncommitted sees the open transaction; read committed ends where it began. */
    private static void pending(Cluster cluster, String topic, int round) throws Exception {
        Check.equal(Cluster.numbers(0, round), committed(cluster, topic).get(1), "committed before the commit");
        Check.equal(Cluster.numbers(0, round + 1), Cluster.values(cluster.readAll(topic).get(1)), "uncommitted");
        TopicPartition partition = new TopicPartition(topic, 1);
        var stable = cluster.admin.listOffsets(Map.of(partition, OffsetSpec.latest()),
                new ListOffsetsOptions(IsolationLevel.READ_COMMITTED)).partitionResult(partition);
        Check.equal(2L * round, Cluster.get(stable).offset(), "last stable offset");
    }
}
