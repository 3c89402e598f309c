package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.common.errors.InvalidRecordStateException;

/** Acquisition locks: they expire, and a member may renew them (KIP-1222). */
final class ShareLockChecks implements GroupCheck.Group {
    private static final String[] BRIEF = {"share.record.lock.duration.ms", "1500"};
    private static final String[] LONG = {"share.record.lock.duration.ms", "60000"};

    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("lock-expires-for-another-member", this::expires);
        checks.put("lock-expired-acknowledgement-fails", this::expiredAcknowledgement);
        checks.put("lock-duration-of-broker", this::durationOfBroker);
        checks.put("lock-renewed-outlives-its-duration", this::renewed);
        checks.put("lock-renewed-record-comes-again", this::renewedComesAgain);
        checks.put("lock-renewed-then-released", world -> renewedThen(world, AcknowledgeType.RELEASE, List.of(0L)));
        checks.put("lock-renewed-then-rejected", world -> renewedThen(world, AcknowledgeType.REJECT, List.of()));
        checks.put("lock-renew-disabled", this::renewDisabled);
        checks.put("lock-renew-in-implicit-mode", this::renewImplicit);
    }

    private void expires(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        String group = world.shareGroup(BRIEF);
        GroupWorld.next(world.explicit(group, topic));
        var found = GroupWorld.take(world.explicit(group, topic), 2, AcknowledgeType.ACCEPT);
        Check.equal(List.of(0L, 1L), GroupWorld.offsets(found), "records whose lock expired");
        Check.that(!GroupWorld.counts(found).contains(1), "an expired lock counts as a delivery: " + found);
    }

    private void expiredAcknowledgement(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup(BRIEF);
        var slow = world.explicit(group, topic);
        var record = GroupWorld.next(slow).get(0);
        AtomicReference<Exception> told = new AtomicReference<>();
        slow.setAcknowledgementCommitCallback((offsets, error) -> told.set(error));
        GroupWorld.take(world.explicit(group, topic), 1, AcknowledgeType.ACCEPT);
        slow.acknowledge(record);
        var result = slow.commitSync();
        Check.equal(1, result.size(), "partitions of the commit");
        var error = result.values().iterator().next();
        Check.that(error.isPresent() && error.get() instanceof InvalidRecordStateException, "result: " + result);
        Check.eventually("the callback", () -> {
            slow.poll(Cluster.POLL);
            return told.get() instanceof InvalidRecordStateException;
        });
    }

    private void durationOfBroker(GroupWorld world) throws Exception {
        var consumer = world.explicit(world.shareGroup(), world.filled(1));
        GroupWorld.take(consumer, 1, AcknowledgeType.ACCEPT);
        Check.equal(60_000, consumer.acquisitionLockTimeoutMs().orElseThrow(), "group.share.record.lock.duration.ms");
    }

    /** Renews until the lock would have expired many times, and another member has got everything else. */
    private void renewed(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup("share.record.lock.duration.ms", "4000");
        var holder = world.explicit(group, topic);
        var other = world.explicit(group, topic);
        var record = GroupWorld.next(holder).get(0);
        int next = 1;
        for (long end = System.nanoTime() + 9_000_000_000L; System.nanoTime() < end; next++) {
            holder.acknowledge(record, AcknowledgeType.RENEW);
            GroupWorld.commit(holder);
            record = GroupWorld.next(holder).get(0);
            Check.equal(0L, record.offset(), "the record that is renewed");
            Check.equal((short) 1, record.deliveryCount().orElseThrow(), "its delivery count");
            if (next % 20 == 1) {
                other.poll(Cluster.POLL).forEach(r -> Check.that(r.offset() > 0, "a renewed record was delivered"));
            }
        }
        holder.acknowledge(record, AcknowledgeType.ACCEPT);
        GroupWorld.commit(holder);
        Check.equal(Set.of(1L), GroupWorld.starts(world.admin, group), "start offset");
    }

    private void renewedComesAgain(GroupWorld world) throws Exception {
        String topic = world.filled(2);
        var consumer = world.explicit(world.shareGroup(LONG), topic);
        var found = GroupWorld.next(consumer);
        consumer.acknowledge(found.get(0), AcknowledgeType.RENEW);
        consumer.acknowledge(found.get(1), AcknowledgeType.ACCEPT);
        GroupWorld.commit(consumer);
        var again = GroupWorld.next(consumer);
        Check.equal(List.of(0L), GroupWorld.offsets(again), "records to work on");
        consumer.acknowledge(again.get(0));
        GroupWorld.commit(consumer);
    }

    private void renewedThen(GroupWorld world, AcknowledgeType type, List<Long> left) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup(LONG);
        var consumer = world.explicit(group, topic);
        consumer.acknowledge(GroupWorld.next(consumer).get(0), AcknowledgeType.RENEW);
        GroupWorld.commit(consumer);
        consumer.acknowledge(GroupWorld.next(consumer).get(0), type);
        GroupWorld.commit(consumer);
        world.close(consumer);
        world.expectNext(group, topic, 1, left);
    }

    private void renewDisabled(GroupWorld world) throws Exception {
        String group = world.shareGroup("share.renew.acknowledge.enable", "false");
        var consumer = world.explicit(group, world.filled(1));
        consumer.acknowledge(GroupWorld.next(consumer).get(0), AcknowledgeType.RENEW);
        var result = consumer.commitSync();
        Check.that(result.size() == 1 && result.values().iterator().next().isPresent(), "result: " + result);
    }

    private void renewImplicit(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.filled(1));
        var record = GroupWorld.next(consumer).get(0);
        Check.refused(IllegalStateException.class, "a renewal in implicit mode", () -> {
            consumer.acknowledge(record, AcknowledgeType.RENEW);
            return null;
        });
    }
}
