package scenarios;

import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Transactions v2 (KIP-890): each commit and each abort raises the producer's epoch, also that of nothing. */
final class TransactionEpochs implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        String id = cluster.freshName();
        try (KafkaProducer<String, String> producer = cluster.producer("transactional.id", id)) {
            producer.initTransactions();
            int first = epoch(cluster, id);
            for (int round = 0; round < 6; round++) {
                producer.beginTransaction();
                for (int partition = 0; partition <= round % 2; partition++) {
                    Cluster.send(producer, new ProducerRecord<>(topic, partition, "k", "" + round));
                }
                if (round % 3 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
                Check.equal(first + round + 1, epoch(cluster, id), "epoch after round " + round);
            }
            Check.eventually("what was committed",
                    () -> TransactionCommit.committed(cluster, topic).get(0).equals(List.of("0", "1", "3", "4")));
            Check.eventually("what was committed in the other partition",
                    () -> TransactionCommit.committed(cluster, topic).get(1).equals(List.of("1", "3")));
        }
    }

    private static int epoch(Cluster cluster, String id) throws Exception {
        return Cluster.get(cluster.admin.describeTransactions(List.of(id)).description(id)).producerEpoch();
    }
}
