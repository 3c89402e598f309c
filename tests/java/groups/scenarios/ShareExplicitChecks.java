package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.errors.RecordDeserializationException;
import org.apache.kafka.common.serialization.IntegerDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Explicit acknowledgement: each type, delivery counts, and the callback. */
final class ShareExplicitChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("explicit-accept-is-final", world -> finalType(world, AcknowledgeType.ACCEPT));
        checks.put("explicit-reject-is-final", world -> finalType(world, AcknowledgeType.REJECT));
        checks.put("explicit-release-delivers-again", this::release);
        checks.put("explicit-default-type-is-accept", this::defaultType);
        checks.put("explicit-types-in-one-batch", this::mixed);
        checks.put("explicit-poll-requires-acknowledgements", this::pollRequiresAcknowledgements);
        checks.put("explicit-last-type-counts", this::lastTypeCounts);
        checks.put("explicit-twice-after-commit", this::twiceAfterCommit);
        checks.put("explicit-unknown-record", this::unknownRecord);
        checks.put("explicit-close-sends-acknowledgements", this::closeSendsAcknowledgements);
        checks.put("explicit-close-releases-the-rest", this::closeReleasesTheRest);
        checks.put("explicit-partial-commit", this::partialCommit);
        checks.put("explicit-next-poll-sends", this::nextPollSends);
        checks.put("explicit-callback-after-poll", this::callbackAfterPoll);
        checks.put("explicit-callback-removed", this::callbackRemoved);
        checks.put("explicit-delivery-count-limit-of-group", world -> limit(world, 3));
        checks.put("explicit-delivery-count-limit-default", world -> limit(world, 5));
        checks.put("explicit-deserialization-error", this::deserializationError);
        checks.put("explicit-release-to-another-member", this::releaseToAnother);
        checks.put("explicit-lock-timeout-is-known", this::lockTimeout);
    }

    private void finalType(GroupWorld world, AcknowledgeType type) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        GroupWorld.take(consumer, 3, type);
        GroupWorld.commit(consumer);
        world.close(consumer);
        world.expectNext(group, topic, 3, List.of());
    }

    private void release(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(3));
        GroupWorld.take(consumer, 3, AcknowledgeType.RELEASE);
        GroupWorld.commit(consumer);
        var again = GroupWorld.take(consumer, 3, AcknowledgeType.ACCEPT);
        Check.equal(List.of(0L, 1L, 2L), GroupWorld.offsets(again), "released records");
        Check.equal(Set.of(2), GroupWorld.counts(again), "delivery counts");
    }

    private void defaultType(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        GroupWorld.next(consumer).forEach(consumer::acknowledge);
        GroupWorld.commit(consumer);
        world.close(consumer);
        world.expectNext(group, topic, 2, List.of());
    }

    private void mixed(GroupWorld world) throws Exception {
        String topic = world.filled(6);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        AcknowledgeType[] types = {AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT};
        GroupWorld.next(consumer).forEach(r -> consumer.acknowledge(r, types[(int) r.offset() % 3]));
        GroupWorld.commit(consumer);
        world.close(consumer);
        world.expectNext(group, topic, 6, List.of(1L, 4L));
    }

    private void pollRequiresAcknowledgements(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(2));
        var found = GroupWorld.next(consumer);
        consumer.acknowledge(found.get(0));
        Check.refused(IllegalStateException.class, "a poll before all is acknowledged",
                () -> consumer.poll(Cluster.POLL));
        consumer.acknowledge(found.get(1));
        consumer.poll(Cluster.POLL);
    }

    private void lastTypeCounts(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(1));
        var record = GroupWorld.next(consumer).get(0);
        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
        consumer.acknowledge(record, AcknowledgeType.RELEASE);
        GroupWorld.commit(consumer);
        Check.equal(Set.of(2), GroupWorld.counts(GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT)), "delivery count");
    }

    private void twiceAfterCommit(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(1));
        var record = GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT).get(0);
        GroupWorld.commit(consumer);
        Check.refused(IllegalStateException.class, "acknowledging what was committed", () -> {
            consumer.acknowledge(record, AcknowledgeType.RELEASE);
            return null;
        });
    }

    private void unknownRecord(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        var consumer = world.explicit(world.shareGroup(), topic);
        GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT);
        Check.refused(IllegalStateException.class, "acknowledging what was not delivered", () -> {
            consumer.acknowledge(topic, 0, 17, AcknowledgeType.ACCEPT);
            return null;
        });
    }

    private void closeSendsAcknowledgements(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        GroupWorld.take(consumer, 3, AcknowledgeType.ACCEPT);
        world.close(consumer);
        world.expectNext(group, topic, 3, List.of());
    }

    private void closeReleasesTheRest(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        consumer.acknowledge(GroupWorld.next(consumer).get(1));
        world.close(consumer);
        world.expectNext(group, topic, 3, List.of(0L, 2L));
    }

    private void partialCommit(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        var found = GroupWorld.next(consumer);
        consumer.acknowledge(found.get(0));
        consumer.acknowledge(found.get(2));
        GroupWorld.commit(consumer);
        Check.equal(Set.of(1L), GroupWorld.starts(world.admin, group), "start offset");
        consumer.acknowledge(found.get(1));
        consumer.acknowledge(found.get(3));
        GroupWorld.commit(consumer);
        Check.equal(Set.of(4L), GroupWorld.starts(world.admin, group), "start offset");
    }

    private void nextPollSends(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        GroupWorld.take(consumer, 2, AcknowledgeType.ACCEPT);
        Check.eventually("the start offset behind both", () -> {
            consumer.poll(Cluster.POLL);
            return GroupWorld.starts(world.admin, group).equals(Set.of(2L));
        });
    }

    private void callbackAfterPoll(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(3));
        Set<Long> done = ConcurrentHashMap.newKeySet();
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            Check.that(error == null, "the acknowledgement failed: " + error);
            offsets.values().forEach(done::addAll);
        });
        GroupWorld.take(consumer, 3, AcknowledgeType.REJECT);
        Check.eventually("the callback", () -> {
            consumer.poll(Cluster.POLL);
            return done.equals(Set.of(0L, 1L, 2L));
        });
    }

    private void callbackRemoved(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        var consumer = world.explicit(world.shareGroup(), topic);
        Set<Long> done = ConcurrentHashMap.newKeySet();
        consumer.setAcknowledgementCommitCallback((offsets, error) -> offsets.values().forEach(done::addAll));
        consumer.setAcknowledgementCommitCallback(null);
        GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT);
        GroupWorld.commit(consumer);
        world.fill(topic, 1, 2);
        GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT);
        Check.equal(Set.of(), done, "calls of a callback that was removed");
    }

    private void limit(GroupWorld world, int limit) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        if (limit != 5) {
            world.configure(group, "share.delivery.count.limit", "" + limit);
        }
        var consumer = world.explicit(group, topic);
        for (int count = 1; count <= limit; count++) {
            var found = GroupWorld.take(consumer, 1, AcknowledgeType.RELEASE);
            Check.equal(Set.of(count), GroupWorld.counts(found), "delivery count");
        }
        GroupWorld.commit(consumer);
        world.close(consumer);
        world.expectNext(group, topic, 1, List.of());
    }

    private void deserializationError(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        String group = world.shareGroup();
        Map<String, Object> settings = world.settings("group.id", group, "share.acknowledgement.mode", "explicit");
        var consumer = world.opened(
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new IntegerDeserializer()));
        consumer.subscribe(List.of(topic));
        var failure = Check.refusedAtLast(RecordDeserializationException.class, "a value that is no integer",
                () -> consumer.poll(Cluster.POLL));
        Check.equal(0L, failure.offset(), "offset of the first such record");
        consumer.acknowledge(topic, 0, 0, AcknowledgeType.REJECT);
        var result = consumer.commitSync();
        Check.that(result.values().stream().allMatch(e -> e.isEmpty()), "the rejection failed: " + result);
        Check.equal(Set.of(1L), GroupWorld.starts(world.admin, group), "start offset");
    }

    private void releaseToAnother(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        var first = world.explicit(group, topic);
        GroupWorld.take(first, 1, AcknowledgeType.RELEASE);
        GroupWorld.commit(first);
        world.close(first);
        var found = GroupWorld.take(world.explicit(group, topic), 1, AcknowledgeType.ACCEPT);
        Check.that(!GroupWorld.counts(found).contains(1), "delivery counts: " + GroupWorld.counts(found));
    }

    private void lockTimeout(GroupWorld world) throws Exception {
        String group = world.shareGroup("share.record.lock.duration.ms", "7000");
        var consumer = world.explicit(group, world.filled(1));
        Check.equal(java.util.Optional.empty(), consumer.acquisitionLockTimeoutMs(), "before the first records");
        GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT);
        Check.equal(java.util.Optional.of(7000), consumer.acquisitionLockTimeoutMs(), "lock timeout");
    }
}
