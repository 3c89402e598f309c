package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Implicit acknowledgement, and what is delivered to whom. */
final class ShareImplicitChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("implicit-next-poll-accepts", this::nextPollAccepts);
        checks.put("implicit-commit-sync-accepts", this::commitSyncAccepts);
        checks.put("implicit-commit-async-accepts", this::commitAsyncAccepts);
        checks.put("implicit-close-releases", this::closeReleases);
        checks.put("implicit-commit-without-records", this::commitWithoutRecords);
        checks.put("implicit-first-delivery-count", this::firstDeliveryCount);
        checks.put("implicit-members-share-a-partition", this::membersShareAPartition);
        checks.put("implicit-groups-are-independent", this::groupsAreIndependent);
        checks.put("implicit-all-partitions-for-one-member", this::allPartitions);
        checks.put("implicit-several-topics", this::severalTopics);
        checks.put("implicit-record-is-whole", this::recordIsWhole);
        for (String type : List.of("gzip", "snappy", "lz4", "zstd")) {
            checks.put("implicit-" + type, world -> compressed(world, type));
        }
        checks.put("implicit-null-value", this::nullValue);
        checks.put("implicit-offset-gaps-of-transactions", this::offsetGaps);
        checks.put("implicit-subscription-change", this::subscriptionChange);
        checks.put("implicit-unsubscribe-lets-locks-expire", this::unsubscribeLetsLocksExpire);
        checks.put("implicit-topic-created-later", this::topicCreatedLater);
        checks.put("implicit-partitions-added", this::partitionsAdded);
    }

    private void nextPollAccepts(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 3);
        world.fill(topic, 3, 4);
        GroupWorld.take(consumer, 1);
        world.close(consumer);
        world.expectNext(group, topic, 4, List.of(3L));
    }

    private void commitSyncAccepts(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 3);
        var result = consumer.commitSync();
        Check.equal(Set.of(topic), result.keySet().stream().map(p -> p.topic()).collect(Collectors.toSet()), "topics");
        Check.that(result.values().stream().allMatch(e -> e.isEmpty()), "the commit failed: " + result);
        world.close(consumer);
        world.expectNext(group, topic, 3, List.of());
    }

    private void commitAsyncAccepts(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        Set<Long> done = ConcurrentHashMap.newKeySet();
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            if (error == null) {
                offsets.values().forEach(done::addAll);
            }
        });
        GroupWorld.take(consumer, 3);
        consumer.commitAsync();
        Check.eventually("the callback", () -> {
            consumer.poll(Cluster.POLL);
            return done.equals(Set.of(0L, 1L, 2L));
        });
        world.close(consumer);
        world.expectNext(group, topic, 3, List.of());
    }

    private void closeReleases(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 3);
        world.close(consumer);
        var again = GroupWorld.take(world.share(group, topic), 3);
        Check.equal(List.of(0L, 1L, 2L), GroupWorld.offsets(again), "released records");
        Check.equal(Set.of(2), GroupWorld.counts(again), "delivery counts");
    }

    private void commitWithoutRecords(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.cluster.topic(1));
        consumer.poll(Cluster.POLL);
        Check.equal(Map.of(), consumer.commitSync(), "result of a commit of nothing");
    }

    private void firstDeliveryCount(GroupWorld world) throws Exception {
        var found = GroupWorld.take(world.share(world.shareGroup(), world.filled(5)), 5);
        Check.equal(Set.of(1), GroupWorld.counts(found), "delivery counts");
    }

    private void membersShareAPartition(GroupWorld world) throws Exception {
        String topic = world.filled(60);
        String group = world.shareGroup();
        String[] limit = {"max.poll.records", "5", "share.acquire.mode", "record_limit"};
        var first = world.share(group, topic, limit);
        var second = world.share(group, topic, limit);
        Set<Long> all = new HashSet<>();
        Set<Long> others = new HashSet<>();
        Check.eventually("records for both", () -> {
            first.poll(Cluster.POLL).forEach(r -> Check.that(all.add(r.offset()), "delivered twice: " + r.offset()));
            second.poll(Cluster.POLL).forEach(r -> {
                Check.that(all.add(r.offset()), "delivered twice: " + r.offset());
                others.add(r.offset());
            });
            return all.size() == 60;
        });
        Check.that(!others.isEmpty() && others.size() < 60, "one member got all records");
    }

    private void groupsAreIndependent(GroupWorld world) throws Exception {
        String topic = world.filled(5);
        var first = GroupWorld.take(world.share(world.shareGroup(), topic), 5);
        var second = GroupWorld.take(world.share(world.shareGroup(), topic), 5);
        Check.equal(GroupWorld.offsets(first), GroupWorld.offsets(second), "records of two groups");
        Check.equal(Set.of(1), GroupWorld.counts(second), "delivery counts");
    }

    private void allPartitions(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        for (int partition = 0; partition < 4; partition++) {
            world.fill(topic, partition, 0, 3);
        }
        var found = GroupWorld.take(world.share(world.shareGroup(), topic), 12);
        Check.equal(Set.of(0, 1, 2, 3), found.stream().map(r -> r.partition()).collect(Collectors.toSet()), "partitions");
        for (int partition = 0; partition < 4; partition++) {
            int wanted = partition;
            var its = found.stream().filter(r -> r.partition() == wanted).collect(Collectors.toList());
            Check.equal(Cluster.numbers(0, 3), Cluster.values(its), "records of one partition in order");
        }
    }

    private void severalTopics(GroupWorld world) throws Exception {
        String first = world.filled(2);
        String second = world.filled(3);
        KafkaShareConsumer<String, String> consumer = world.unsubscribed(world.shareGroup());
        consumer.subscribe(List.of(first, second));
        Check.equal(Set.of(first, second), consumer.subscription(), "subscription");
        var found = GroupWorld.take(consumer, 5);
        Check.equal(2L, found.stream().filter(r -> r.topic().equals(first)).count(), "records of the first topic");
    }

    private void recordIsWhole(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        try (KafkaProducer<String, String> producer = world.cluster.producer()) {
            var record = new ProducerRecord<>(topic, 0, 1234567890123L, "key", "value");
            record.headers().add(new RecordHeader("name", new byte[] {1, 2}));
            Cluster.send(producer, record);
        }
        ConsumerRecord<String, String> found = GroupWorld.take(world.share(world.shareGroup(), topic), 1).get(0);
        Check.equal("key value 1234567890123", found.key() + " " + found.value() + " " + found.timestamp(), "record");
        Check.equal(2, found.headers().lastHeader("name").value().length, "size of the header's value");
        Check.equal(0L, found.offset(), "offset");
    }

    private void compressed(GroupWorld world, String type) throws Exception {
        String topic = world.cluster.topic(1);
        world.fill(topic, 0, 0, 50, "compression.type", type);
        String group = world.shareGroup();
        var limited = world.share(group, topic, "max.poll.records", "20", "share.acquire.mode", "record_limit");
        Check.equal(Cluster.numbers(0, 50), Cluster.values(GroupWorld.take(limited, 50)), "values, parts of a batch");
    }

    private void nullValue(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        try (KafkaProducer<String, String> producer = world.cluster.producer()) {
            Cluster.send(producer, new ProducerRecord<>(topic, 0, null, null));
        }
        var found = GroupWorld.take(world.share(world.shareGroup(), topic), 1).get(0);
        Check.that(found.key() == null && found.value() == null, "a record without key and value: " + found);
    }

    private void offsetGaps(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            for (int i = 0; i < 3; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, "k", "" + i));
                producer.commitTransaction();
            }
        }
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        var found = GroupWorld.take(consumer, 3);
        Check.equal(List.of(0L, 2L, 4L), GroupWorld.offsets(found), "offsets beside commit markers");
        GroupWorld.commit(consumer);
        Check.eventually("the group to be done with the last marker", () -> {
            consumer.poll(Cluster.POLL);
            return ShareOffsetChecks.lags(world.admin, group).equals(List.of(0L));
        });
    }

    private void subscriptionChange(GroupWorld world) throws Exception {
        String first = world.filled(2);
        String second = world.filled(2);
        var consumer = world.share(world.shareGroup(), first);
        GroupWorld.take(consumer, 2);
        consumer.subscribe(List.of(second));
        Check.equal(Set.of(second), consumer.subscription(), "subscription");
        var found = GroupWorld.take(consumer, 2);
        Check.that(found.stream().allMatch(r -> r.topic().equals(second)), "records of the new topic alone");
    }

    /** The client neither acknowledges nor releases: the share session stays open with its connection. */
    private void unsubscribeLetsLocksExpire(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        String group = world.shareGroup("share.record.lock.duration.ms", "10000");
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 2);
        consumer.unsubscribe();
        Check.equal(Set.of(), consumer.subscription(), "subscription");
        var found = GroupWorld.take(world.share(group, topic), 2);
        Check.equal(Set.of(2), GroupWorld.counts(found), "delivery counts");
    }

    private void topicCreatedLater(GroupWorld world) throws Exception {
        String topic = world.cluster.topicName();
        var consumer = world.share(world.shareGroup(), topic, "allow.auto.create.topics", "false");
        consumer.poll(Cluster.POLL);
        world.cluster.create(new org.apache.kafka.clients.admin.NewTopic(topic, 1, (short) -1));
        world.fill(topic, 0, 2);
        Check.equal(List.of(0L, 1L), GroupWorld.offsets(GroupWorld.take(consumer, 2)), "records of a new topic");
    }

    private void partitionsAdded(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        var consumer = world.share(world.shareGroup(), topic);
        GroupWorld.take(consumer, 1);
        Cluster.get(world.admin.createPartitions(
                Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(2))).all());
        world.cluster.waitForLeaders(topic, 2);
        world.fill(topic, 1, 0, 2);
        var found = GroupWorld.take(consumer, 2);
        Check.that(found.stream().allMatch(r -> r.partition() == 1), "records of the new partition: " + found);
    }
}
