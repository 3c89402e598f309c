package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A producer that goes on sending 0, 1, 2, ... to all partitions of a topic in turn until it is stopped. */
final class Flow {
    private final Thread thread = new Thread(this::run, "flow");
    private final Cluster cluster;
    private final String topic;
    private final int partitions;
    private volatile boolean stopping;
    private volatile int sent;
    private volatile Exception failure;

    Flow(Cluster cluster, String topic, int partitions) {
        this.cluster = cluster;
        this.topic = topic;
        this.partitions = partitions;
        thread.setDaemon(true);
        thread.start();
    }

    private void run() {
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            while (!stopping) {
                producer.send(new ProducerRecord<>(topic, sent % partitions, null, "" + sent), (told, error) -> {
                    failure = error == null ? failure : error;
                });
                sent++;
                Thread.sleep(2);
            }
        } catch (Exception e) {
            failure = e;
        }
    }

    int sent() {
        return sent;
    }

    /** Ends the flow; every record was acknowledged. */
    int stop() throws Exception {
        stopping = true;
        thread.join(Check.LIMIT_MS);
        Check.that(failure == null, "the producer beside the group failed: " + failure);
        Check.that(sent > 0, "the producer beside the group sent nothing");
        return sent;
    }

    /** Ends the flow and waits until the members have read all of it, together. */
    void stopAndAwait(List<Member> members) throws Exception {
        Set<String> wanted = new HashSet<>(Cluster.numbers(0, stop()));
        Check.eventually("every record at some member", () -> {
            Set<String> read = new HashSet<>();
            members.forEach(m -> read.addAll(m.values()));
            return read.containsAll(wanted);
        });
    }
}
