package scenarios;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/**
 * A batch above max.message.bytes: the client splits it and sends its parts under new sequence numbers. Clients before
 * 4.0 split by their own batch.size, so that parts which are still too large go to and fro for ever, with any broker.
 */
final class ProduceSplit implements Scenario {
    private static final int RECORDS = 300;

    @Override
    public List<String> expectedWarnings() {
        return List.of("Got error produce response .* splitting and retrying .* MESSAGE_TOO_LARGE");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1, "max.message.bytes", "2000");
        var answers = new ArrayList<Future<RecordMetadata>>();
        try (KafkaProducer<String, String> producer = cluster.producer("batch.size", "20000", "linger.ms", "1000")) {
            for (int i = 0; i < RECORDS; i++) {
                answers.add(producer.send(new ProducerRecord<>(topic, 0, "k", "" + i)));
            }
            producer.flush();
        }
        for (int i = 0; i < RECORDS; i++) {
            Check.equal((long) i, answers.get(i).get().offset(), "offset of a record whose batch was split");
        }
        Check.equal(Cluster.numbers(0, RECORDS), Cluster.values(cluster.readAll(topic).get(0)), "records, split");
    }
}
