package scenarios;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Where a share group starts, and what it sees of transactions and of a log whose start moves. */
final class ShareStartChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("start-latest-is-the-default", world -> latest(world, null));
        checks.put("start-latest", world -> latest(world, "latest"));
        checks.put("start-earliest", this::earliest);
        checks.put("start-by-duration", this::byDuration);
        checks.put("start-setting-counts-once", this::countsOnce);
        checks.put("start-log-start-moves", this::logStartMoves);
        checks.put("start-held-records-deleted", this::heldRecordsDeleted);
        checks.put("isolation-uncommitted-is-the-default", world -> isolation(world, null, 4));
        checks.put("isolation-read-uncommitted", world -> isolation(world, "read_uncommitted", 4));
        checks.put("isolation-read-committed", world -> isolation(world, "read_committed", 3));
        checks.put("isolation-open-transaction-waits", this::openTransaction);
        checks.put("isolation-open-transaction-uncommitted", this::openTransactionUncommitted);
    }

    private void latest(GroupWorld world, String setting) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        if (setting != null) {
            world.configure(group, "share.auto.offset.reset", setting);
        }
        var consumer = world.share(group, topic);
        Check.eventually("the start offset", () -> {
            consumer.poll(Cluster.POLL);
            return GroupWorld.starts(world.admin, group).equals(Set.of(3L));
        });
        world.fill(topic, 3, 5);
        Check.equal(List.of(3L, 4L), GroupWorld.offsets(GroupWorld.take(consumer, 2)), "records after the start");
    }

    private void earliest(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        world.configure(group, "share.auto.offset.reset", "earliest");
        Check.equal(List.of(0L, 1L), GroupWorld.offsets(GroupWorld.take(world.share(group, world.filled(2)), 2)), "all");
    }

    private void byDuration(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        long now = System.currentTimeMillis();
        try (KafkaProducer<String, String> producer = world.cluster.producer()) {
            for (int hours : new int[] {5, 3, 1, 0}) {
                long time = now - Duration.ofHours(hours).toMillis();
                Cluster.send(producer, new ProducerRecord<>(topic, 0, time, "k", "" + hours));
            }
        }
        String group = world.shareGroup("share.auto.offset.reset", "by_duration:PT2H");
        var found = GroupWorld.take(world.share(group, topic), 2);
        Check.equal(List.of(2L, 3L), GroupWorld.offsets(found), "records of the last two hours");
    }

    private void countsOnce(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup("share.auto.offset.reset", "latest");
        var consumer = world.share(group, topic);
        Check.eventually("the start offset", () -> {
            consumer.poll(Cluster.POLL);
            return GroupWorld.starts(world.admin, group).equals(Set.of(3L));
        });
        world.close(consumer);
        world.configure(group, "share.auto.offset.reset", "earliest");
        world.expectNext(group, topic, 3, List.of());
    }

    private void logStartMoves(GroupWorld world) throws Exception {
        String topic = world.filled(10);
        String group = world.shareGroup();
        var first = world.explicit(group, topic, "share.acquire.mode", "record_limit", "max.poll.records", "2");
        GroupWorld.take(first, 2, AcknowledgeType.ACCEPT);
        GroupWorld.commit(first);
        world.close(first);
        delete(world, topic, 7);
        var found = GroupWorld.take(world.explicit(group, topic), 3, AcknowledgeType.ACCEPT);
        Check.equal(List.of(7L, 8L, 9L), GroupWorld.offsets(found), "records that the log still has");
    }

    private void heldRecordsDeleted(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        var held = GroupWorld.next(consumer);
        delete(world, topic, 4);
        held.forEach(consumer::acknowledge);
        consumer.commitSync();
        world.fill(topic, 4, 5);
        Check.equal(List.of(4L), GroupWorld.offsets(GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT)), "the next record");
    }

    private static void delete(GroupWorld world, String topic, long before) throws Exception {
        var partition = new TopicPartition(topic, 0);
        Cluster.get(world.admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(before))).all());
    }

    /** Records of an aborted and a committed transaction, and two others. */
    private void isolation(GroupWorld world, String level, int count) throws Exception {
        String topic = world.filled(1);
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            for (String value : List.of("aborted", "committed")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, "k", value)).get();
                if (value.equals("aborted")) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        world.fill(topic, 9, 10);
        String group = world.shareGroup();
        if (level != null) {
            world.configure(group, "share.isolation.level", level);
        }
        var values = Cluster.values(GroupWorld.take(world.share(group, topic), count));
        List<String> wanted =
                count == 4 ? List.of("0", "aborted", "committed", "9") : List.of("0", "committed", "9");
        Check.equal(wanted, values, "records");
    }

    private void openTransaction(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        var consumer = world.share(world.shareGroup("share.isolation.level", "read_committed"), topic);
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "open")).get();
            world.fill(topic, 9, 10);
            Check.equal(List.of("0"), Cluster.values(GroupWorld.take(consumer, 1)), "before the open transaction");
            for (int i = 0; i < 5; i++) {
                Check.equal(0, consumer.poll(Cluster.POLL).count(), "records behind the last stable offset");
            }
            producer.commitTransaction();
        }
        Check.equal(List.of("open", "9"), Cluster.values(GroupWorld.take(consumer, 2)), "after the commit");
    }

    private void openTransactionUncommitted(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        var consumer = world.share(world.shareGroup(), topic);
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, "k", "open")).get();
            Check.equal(List.of("open"), Cluster.values(GroupWorld.take(consumer, 1)), "an open transaction");
            producer.abortTransaction();
        }
    }
}
