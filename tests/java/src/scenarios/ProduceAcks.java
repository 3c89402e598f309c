package scenarios;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/** Each kind of acknowledgement without idempotence: what was acknowledged is there, and says where. */
final class ProduceAcks implements Scenario {
    private static final int RECORDS = 200;

    @Override
    public void run(Cluster cluster) throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            String topic = cluster.topic(1);
            var answers = new ArrayList<Future<RecordMetadata>>();
            try (KafkaProducer<String, String> producer = cluster.producer(
                    "acks", acks, "enable.idempotence", "false", "max.in.flight.requests.per.connection", "1",
                    "batch.size", "1024")) {
                for (int i = 0; i < RECORDS; i++) {
                    answers.add(producer.send(new ProducerRecord<>(topic, 0, null, "" + i)));
                }
            }
            for (int i = 0; i < RECORDS; i++) {
                long wanted = acks.equals("0") ? -1 : i;
                Check.equal(wanted, answers.get(i).get().offset(), "offset that acks=" + acks + " told");
            }
            Check.eventually("everything sent with acks=" + acks, () -> cluster.end(topic, 0) == RECORDS);
            Check.equal(Cluster.numbers(0, RECORDS), Cluster.values(cluster.readAll(topic).get(0)), "acks=" + acks);
        }
    }
}
