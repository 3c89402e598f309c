package scenarios;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;

/** Records are produced in order on a connection that re-authenticates twice (KIP-368). */
final class Reauthentication implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        int[] sent = new int[1];
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            Check.eventually("two re-authentications", () -> {
                Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "" + sent[0]++));
                return reauthentications(producer) >= 2;
            });
        }
        Check.equal(Cluster.numbers(0, sent[0]), Cluster.values(cluster.readAll(topic).get(0)), "values");
    }

    private static double reauthentications(KafkaProducer<String, String> producer) {
        return producer.metrics().values().stream()
                .filter(m -> m.metricName().name().equals("successful-reauthentication-total"))
                .map(Metric::metricValue)
                .mapToDouble(value -> (Double) value)
                .max().orElse(0);
    }
}
