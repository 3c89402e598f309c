package scenarios;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** What the scenarios of share groups (KIP-932) have in common. */
final class ShareFlow {
    private ShareFlow() {}

    /** A group that starts with the first record, with further settings. */
    static String group(Cluster cluster, String... settings) throws Exception {
        String group = cluster.freshName();
        List<AlterConfigOp> changes = new ArrayList<>();
        changes.add(set("share.auto.offset.reset", "earliest"));
        for (int i = 0; i < settings.length; i += 2) {
            changes.add(set(settings[i], settings[i + 1]));
        }
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        Cluster.get(cluster.admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
        return group;
    }

    private static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    static KafkaShareConsumer<String, String> consumer(Cluster cluster, String group, String... given) {
        Map<String, Object> all = cluster.settings(given);
        all.put("group.id", group);
        return new KafkaShareConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    /** Polls until the consumer has got as many records, each passed to {@code handler} before the next poll. */
    static List<ConsumerRecord<String, String>> poll(
            KafkaShareConsumer<String, String> consumer, int count, Consumer<ConsumerRecord<String, String>> handler)
            throws Exception {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        Check.eventually(count + " records", () -> {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                found.add(record);
                handler.accept(record);
            }
            return found.size() >= count;
        });
        return found;
    }

    /** Commits, and fails if an acknowledgement does. */
    static void commit(KafkaShareConsumer<String, String> consumer) {
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> each : consumer.commitSync().entrySet()) {
            Check.that(each.getValue().isEmpty(), each.getKey() + ": " + each.getValue());
        }
    }

    static short deliveries(ConsumerRecord<String, String> record) {
        return record.deliveryCount().orElseThrow();
    }
}
