package scenarios;

import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.SslAuthenticationException;

/** A side whose certificate the other one does not trust: the handshake fails, and the client does not try again. */
final class RefusedTls implements Scenario {
    @Override
    public boolean isConnected() {
        return false;
    }

    @Override
    public List<String> expectedWarnings() {
        return List.of("");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            Check.refused(SslAuthenticationException.class, "producing",
                    () -> Cluster.send(producer, new ProducerRecord<>("java-refused", "v")));
        }
    }
}
