package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** Committed offsets of groups of the consumer protocol, with member epochs. */
final class ConsumerOffsetChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("offsets-commit-sync", this::commitSync);
        checks.put("offsets-commit-async", this::commitAsync);
        checks.put("offsets-auto-commit-at-close", this::autoCommitAtClose);
        checks.put("offsets-committed-before-revocation", this::beforeRevocation);
        checks.put("offsets-metadata", this::metadata);
        checks.put("offsets-reset-earliest", world -> reset(world, "earliest", 0));
        checks.put("offsets-reset-latest", world -> reset(world, "latest", 3));
        checks.put("offsets-reset-none", this::resetNone);
        checks.put("offsets-commit-after-epoch-change", this::afterEpochChange);
        checks.put("offsets-commit-of-fenced-member", this::fencedMember);
        checks.put("offsets-altered-while-active", this::alteredWhileActive);
        checks.put("offsets-altered-while-empty", this::alteredWhileEmpty);
        checks.put("offsets-deleted-while-subscribed", this::deletedWhileSubscribed);
        checks.put("offsets-deleted-of-other-topic", this::deletedOfOtherTopic);
        checks.put("offsets-in-a-transaction", this::inTransaction);
        checks.put("offsets-in-a-transaction-of-a-member-that-left", this::strangersTransaction);
        checks.put("offsets-list-by-admin", this::listed);
    }

    private static TopicPartition first(String topic) {
        return new TopicPartition(topic, 0);
    }

    private static long committed(GroupWorld world, String group, String topic) throws Exception {
        var found = Cluster.get(world.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        return found.containsKey(first(topic)) ? found.get(first(topic)).offset() : -1;
    }

    /** A member that has read all records. */
    private static KafkaConsumer<String, String> reader(GroupWorld world, String group, String topic, int records)
            throws Exception {
        var member = world.member(group, topic, "enable.auto.commit", "false");
        int[] found = new int[1];
        Check.eventually("records", () -> {
            found[0] += member.poll(Cluster.POLL).count();
            return found[0] == records;
        });
        return member;
    }

    private void commitSync(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        member.commitSync();
        Check.equal(3L, committed(world, group, topic), "committed offset");
        Check.equal(3L, member.committed(Set.of(first(topic))).get(first(topic)).offset(), "as the member sees it");
    }

    private void commitAsync(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        member.commitAsync((offsets, error) -> Check.that(error == null, "the commit failed: " + error));
        GroupWorld.pollUntil("the commit", () -> committed(world, group, topic) == 3, member);
    }

    private void autoCommitAtClose(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = world.member(group, topic, "auto.commit.interval.ms", "600000");
        GroupWorld.pollUntil("the records", () -> !member.assignment().isEmpty() && member.position(first(topic)) == 3, member);
        world.close(member);
        Check.equal(3L, committed(world, group, topic), "committed offset");
    }

    private void beforeRevocation(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        world.fill(topic, 0, 0, 3);
        world.fill(topic, 1, 0, 3);
        String group = world.cluster.freshName();
        var member = world.member(group, topic, "auto.commit.interval.ms", "600000");
        var partitions = Cluster.partitions(topic, 2);
        GroupWorld.pollUntil("the records", () -> member.assignment().size() == 2
                && partitions.stream().allMatch(p -> member.position(p) == 3), member);
        var other = world.member(group, topic, "auto.commit.interval.ms", "600000");
        var again = GroupWorld.pollUntil("one each",
                () -> member.assignment().size() == 1 && other.assignment().size() == 1, member, other);
        other.poll(Cluster.POLL).forEach(again::add);
        Check.equal(0, again.size(), "records that were read again after the revocation");
        Check.equal(3L, other.position(other.assignment().iterator().next()), "position of the new owner");
    }

    private void metadata(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        var member = reader(world, world.cluster.freshName(), topic, 3);
        member.commitSync(Map.of(first(topic), new OffsetAndMetadata(2, "a note")));
        var found = member.committed(Set.of(first(topic))).get(first(topic));
        Check.equal("2 a note", found.offset() + " " + found.metadata(), "offset and metadata");
    }

    private void reset(GroupWorld world, String how, long position) throws Exception {
        String topic = world.filled(3);
        var member = world.member(world.cluster.freshName(), topic, "auto.offset.reset", how, "max.poll.records", "1");
        long[] seen = {-1};
        GroupWorld.pollUntil("a position", () -> {
            if (seen[0] < 0 && !member.assignment().isEmpty()) {
                seen[0] = member.position(first(topic));
            }
            return seen[0] >= position && member.position(first(topic)) == 3;
        }, member);
    }

    private void resetNone(GroupWorld world) throws Exception {
        var member = world.member(world.cluster.freshName(), world.filled(1), "auto.offset.reset", "none");
        Check.refusedAtLast(NoOffsetForPartitionException.class, "a partition without an offset",
                () -> member.poll(Cluster.POLL));
    }

    /** The member's epoch rises with each rebalance; its commits go on. */
    private void afterEpochChange(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        world.fill(topic, 0, 3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        int before = member.groupMetadata().generationId();
        var other = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1, 1), member, other);
        GroupWorld.pollUntil("a higher epoch", () -> member.groupMetadata().generationId() > before, member, other);
        TopicPartition own = member.assignment().iterator().next();
        member.commitSync(Map.of(own, new OffsetAndMetadata(1)));
        Check.equal(1L, member.committed(Set.of(own)).get(own).offset(), "committed offset");
    }

    private void fencedMember(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = world.member(group, topic, "enable.auto.commit", "false", "max.poll.interval.ms", "5000");
        GroupWorld.pollUntilSizes(List.of(1), member);
        GroupWorld.pollUntilSizes(List.of(1), world.member(group, topic, "enable.auto.commit", "false"));
        Check.refused(CommitFailedException.class, "a commit after the member was removed", () -> {
            member.commitSync(Map.of(first(topic), new OffsetAndMetadata(2)));
            return null;
        });
        Check.equal(-1L, committed(world, group, topic), "committed offset");
    }

    private static void alter(GroupWorld world, String group, String topic, long offset) throws Exception {
        Cluster.get(world.admin.alterConsumerGroupOffsets(
                group, Map.of(first(topic), new OffsetAndMetadata(offset))).all());
    }

    private void alteredWhileActive(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        reader(world, group, topic, 3);
        Check.refused(UnknownMemberIdException.class, "offsets of a group with members", () -> {
            alter(world, group, topic, 1);
            return null;
        });
    }

    private void alteredWhileEmpty(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        world.close(reader(world, group, topic, 3));
        alter(world, group, topic, 1);
        reader(world, group, topic, 2);
    }

    private void deletedWhileSubscribed(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        reader(world, group, topic, 3).commitSync();
        Check.refused(GroupSubscribedToTopicException.class, "offsets of a subscribed topic", () -> Cluster.get(
                world.admin.deleteConsumerGroupOffsets(group, Set.of(first(topic))).all()));
    }

    private void deletedOfOtherTopic(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String other = world.filled(3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        member.commitSync();
        member.subscribe(List.of(other));
        GroupWorld.pollUntil("the other topic", () -> member.assignment().equals(Set.of(first(other))), member);
        Check.eventually("the deletion", () -> {
            try {
                Cluster.get(world.admin.deleteConsumerGroupOffsets(group, Set.of(first(topic))).all());
                return true;
            } catch (java.util.concurrent.ExecutionException e) {
                member.poll(Cluster.POLL);
                return false;
            }
        });
        Check.equal(-1L, committed(world, group, topic), "committed offset");
    }

    private void inTransaction(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(first(topic), new OffsetAndMetadata(2)), member.groupMetadata());
            producer.abortTransaction();
            Check.equal(-1L, committed(world, group, topic), "offset of an aborted transaction");
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(first(topic), new OffsetAndMetadata(3)), member.groupMetadata());
            producer.commitTransaction();
        }
        Check.equal(3L, committed(world, group, topic), "committed offset");
    }

    private void strangersTransaction(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = reader(world, group, topic, 3);
        ConsumerGroupMetadata left = member.groupMetadata();
        world.close(member);
        GroupWorld.pollUntilSizes(List.of(1), world.member(group, topic, "enable.auto.commit", "false"));
        try (var producer = world.cluster.producer("transactional.id", world.cluster.freshName())) {
            producer.initTransactions();
            producer.beginTransaction();
            Check.refused(KafkaException.class, "offsets of a member that has left", () -> {
                producer.sendOffsetsToTransaction(Map.of(first(topic), new OffsetAndMetadata(2)), left);
                producer.commitTransaction();
                return null;
            });
            producer.abortTransaction();
        }
        Check.equal(-1L, committed(world, group, topic), "committed offset");
    }

    private void listed(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        reader(world, group, topic, 3).commitSync();
        var found = Cluster.get(world.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
        Check.equal(Map.of(first(topic), 3L), Map.of(first(topic), found.get(first(topic)).offset()), "offsets");
        Check.refused(GroupNotEmptyException.class, "the deletion of a group with members",
                () -> Cluster.get(world.admin.deleteConsumerGroups(List.of(group)).all()));
    }
}
