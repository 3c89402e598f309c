package scenarios;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

/** Explicit acknowledgements: accepted and rejected records are done, released ones come again up to the limit. */
final class ShareExplicit implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String group = ShareFlow.group(cluster, "share.delivery.count.limit", "3");
        cluster.fill(topic, 0, 0, 4);
        Map<Long, Short> deliveries = new TreeMap<>();
        try (KafkaShareConsumer<String, String> consumer =
                ShareFlow.consumer(cluster, group, "share.acknowledgement.mode", "explicit")) {
            consumer.subscribe(List.of(topic));
            ShareFlow.poll(consumer, 4 + 2, record -> {
                deliveries.put(record.offset(), ShareFlow.deliveries(record));
                AcknowledgeType type = AcknowledgeType.ACCEPT;
                if (record.offset() == 1) {
                    type = AcknowledgeType.REJECT;
                } else if (record.offset() == 2) {
                    type = AcknowledgeType.RELEASE;
                }
                consumer.acknowledge(record, type);
            });
            ShareFlow.commit(consumer);
            Check.equal(Map.of(0L, (short) 1, 1L, (short) 1, 2L, (short) 3, 3L, (short) 1), deliveries, "deliveries");
            cluster.fill(topic, 0, 4, 5);
            ShareFlow.poll(consumer, 1, record -> {
                Check.equal(4L, record.offset(), "the record after those that are done");
                consumer.acknowledge(record, AcknowledgeType.RENEW);
            });
            ShareFlow.commit(consumer);
            // The client returns a record again once its lock was renewed (KIP-1222).
            ShareFlow.poll(consumer, 1, record -> {
                Check.equal(4L, record.offset(), "the record whose lock was renewed");
                consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            });
            ShareFlow.commit(consumer);
        }
    }
}
