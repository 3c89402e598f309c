package scenarios;

import java.util.List;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.SaslAuthenticationException;

/** A connection with wrong credentials fails at once with the broker's reason, for each kind of client. */
final class RefusedLogin implements Scenario {
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
            refused("producing", () -> Cluster.send(producer, new ProducerRecord<>("java-refused", "v")));
        }
        try (Admin admin = cluster.newAdmin()) {
            refused("listing topics", () -> Cluster.get(admin.listTopics().names()));
        }
    }

    private static void refused(String what, Callable<?> action) {
        String reason = Check.refused(SaslAuthenticationException.class, what, action).getMessage();
        Check.that(reason.contains("Authentication failed") || reason.contains("invalid_token"), "reason: " + reason);
    }
}
