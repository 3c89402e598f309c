package scenarios;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Aborted transactions, alone and interleaved with another producer's: read_committed never sees their records. */
final class TransactionAbort implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        List<String> wanted = new ArrayList<>();
        try (KafkaProducer<String, String> one = cluster.producer("transactional.id", cluster.freshName());
                KafkaProducer<String, String> two = cluster.producer("transactional.id", cluster.freshName());
                KafkaProducer<String, String> plain = cluster.producer()) {
            one.initTransactions();
            two.initTransactions();
            for (int round = 0; round < 10; round++) {
                one.beginTransaction();
                two.beginTransaction();
                Cluster.send(one, new ProducerRecord<>(topic, 0, "k", "one " + round));
                Cluster.send(plain, new ProducerRecord<>(topic, 0, "k", "plain " + round));
                Cluster.send(two, new ProducerRecord<>(topic, 0, "k", "two " + round));
                end(one, round % 2 == 0);
                end(two, round % 3 == 0);
                if (round % 2 == 0) {
                    wanted.add("one " + round);
                }
                wanted.add("plain " + round);
                if (round % 3 == 0) {
                    wanted.add("two " + round);
                }
            }
            Check.eventually("all markers", () -> cluster.end(topic, 0) == 50);
            Check.eventually("the last stable offset at the end",
                    () -> !TransactionCommit.committed(cluster, topic).get(0).isEmpty()
                            && TransactionCommit.committed(cluster, topic).get(0).containsAll(wanted));
        }
        Check.equal(wanted, TransactionCommit.committed(cluster, topic).get(0), "committed");
        Check.equal(30, cluster.readAll(topic).get(0).size(), "records with the aborted ones");
    }

    private static void end(KafkaProducer<String, String> producer, boolean commit) {
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.abortTransaction();
        }
    }
}
