package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;

/** Two members of a share group divide the records of one partition; each poll accepts the records of the one before. */
final class ShareImplicit implements Scenario {
    private static final int RECORDS = 40;

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(1);
        String group = ShareFlow.group(cluster);
        cluster.fill(topic, 0, 0, RECORDS);
        String[] limited = {"max.poll.records", "5", "share.acquire.mode", "record_limit"};
        Set<Long> offsets = new HashSet<>();
        try (KafkaShareConsumer<String, String> first = ShareFlow.consumer(cluster, group, limited);
                KafkaShareConsumer<String, String> second = ShareFlow.consumer(cluster, group, limited)) {
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            ShareFlow.poll(first, 5, r -> Check.that(offsets.add(r.offset()), "delivered twice: " + r.offset()));
            ShareFlow.poll(second, 5, r -> Check.that(offsets.add(r.offset()), "delivered twice: " + r.offset()));
            ShareFlow.poll(first, RECORDS - offsets.size(),
                    r -> Check.that(offsets.add(r.offset()), "delivered twice: " + r.offset()));
            ShareFlow.commit(first);
            ShareFlow.commit(second);
        }
        cluster.fill(topic, 0, RECORDS, RECORDS + 1);
        try (KafkaShareConsumer<String, String> third = ShareFlow.consumer(cluster, group)) {
            third.subscribe(List.of(topic));
            var found = ShareFlow.poll(third, 1, r -> {});
            Check.equal((long) RECORDS, found.get(0).offset(), "the first record that was not accepted");
        }
    }
}
