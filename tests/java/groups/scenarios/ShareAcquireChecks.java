package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;

/** How many records a poll acquires (KIP-1206), and how many a group may hold. */
final class ShareAcquireChecks implements GroupCheck.Group {
    private static final String[] LIMIT = {"share.acquire.mode", "record_limit", "max.poll.records", "3"};

    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("acquire-record-limit-within-a-batch", this::recordLimit);
        checks.put("acquire-record-limit-of-one", this::one);
        checks.put("acquire-record-limit-released", this::released);
        checks.put("acquire-batch-optimized-returns-a-batch", this::batchOptimized);
        checks.put("acquire-many-batches", this::manyBatches);
        checks.put("acquire-max-record-locks", this::maxLocks);
        checks.put("acquire-large-record", this::largeRecord);
    }

    private void recordLimit(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(10), LIMIT);
        for (List<Long> wanted : List.of(List.of(0L, 1L, 2L), List.of(3L, 4L, 5L), List.of(6L, 7L, 8L), List.of(9L))) {
            var found = GroupWorld.next(consumer);
            Check.equal(wanted, GroupWorld.offsets(found), "records of one poll");
            found.forEach(consumer::acknowledge);
        }
    }

    private void one(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        var consumer =
                world.explicit(world.shareGroup(), topic, "share.acquire.mode", "record_limit", "max.poll.records", "1");
        for (long offset = 0; offset < 4; offset++) {
            Check.equal(List.of(offset), GroupWorld.offsets(GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT)), "poll");
        }
    }

    private void released(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(6), LIMIT);
        var first = GroupWorld.next(consumer);
        first.forEach(r -> consumer.acknowledge(r, r.offset() == 1 ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT));
        GroupWorld.commit(consumer);
        Set<Long> rest = new HashSet<>();
        Check.eventually("the rest", () -> {
            consumer.poll(Cluster.POLL).forEach(r -> {
                rest.add(r.offset());
                consumer.acknowledge(r);
                Check.equal(r.offset() == 1 ? 2 : 1, (int) r.deliveryCount().orElseThrow(), "count of " + r.offset());
            });
            return rest.equals(Set.of(1L, 3L, 4L, 5L));
        });
    }

    private void batchOptimized(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(10), "max.poll.records", "3");
        Check.equal(10, GroupWorld.next(consumer).size(), "records of one poll");
    }

    private void manyBatches(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        for (int i = 0; i < 20; i++) {
            world.fill(topic, i * 5, i * 5 + 5);
        }
        var found = GroupWorld.take(world.explicit(world.shareGroup(), topic), 100, AcknowledgeType.ACCEPT);
        Check.equal(Cluster.numbers(0, 100), Cluster.values(found), "values in order");
    }

    private void maxLocks(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        for (int i = 0; i < 25; i++) {
            world.fill(topic, i * 10, i * 10 + 10);
        }
        String group = world.shareGroup("share.partition.max.record.locks", "100");
        var holder = world.explicit(group, topic, "share.acquire.mode", "record_limit", "max.poll.records", "100");
        var held = GroupWorld.next(holder);
        Check.that(held.size() <= 100, "one poll locks " + held.size() + " records");
        var other = world.explicit(group, topic, "share.acquire.mode", "record_limit", "max.poll.records", "100");
        if (held.size() == 100) {
            for (int i = 0; i < 10; i++) {
                Check.equal(0, other.poll(Cluster.POLL).count(), "records above the limit of locks");
            }
        }
        held.forEach(holder::acknowledge);
        GroupWorld.commit(holder);
        GroupWorld.take(other, 250 - held.size(), AcknowledgeType.ACCEPT);
    }

    private void largeRecord(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        String value = "v".repeat(700_000);
        try (var producer = world.cluster.producer()) {
            for (int i = 0; i < 3; i++) {
                Cluster.send(producer, new org.apache.kafka.clients.producer.ProducerRecord<>(topic, 0, "k", value));
            }
        }
        var consumer = world.explicit(world.shareGroup(), topic, "fetch.max.bytes", "1000");
        var found = GroupWorld.take(consumer, 3, AcknowledgeType.ACCEPT);
        Check.that(found.stream().allMatch(r -> r.value().equals(value)), "records above fetch.max.bytes are whole");
    }
}
