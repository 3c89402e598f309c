package scenarios;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Offsets of share groups: list, alter and delete. */
final class ShareOffsetChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("share-offsets-start-and-lag", this::startAndLag);
        checks.put("share-offsets-lag-counts-what-is-done", this::lagCountsDone);
        checks.put("share-offsets-of-chosen-partitions", this::chosen);
        checks.put("share-offsets-of-missing-topic", this::missingTopic);
        checks.put("share-offsets-of-missing-group", this::missingGroup);
        checks.put("share-offsets-of-many-groups", this::manyGroups);
        checks.put("alter-share-offsets-back", this::alterBack);
        checks.put("alter-share-offsets-forward", this::alterForward);
        checks.put("alter-share-offsets-clears-records-in-flight", this::alterClears);
        checks.put("alter-share-offsets-with-members", this::alterNotEmpty);
        checks.put("alter-share-offsets-missing-topic", this::alterMissingTopic);
        checks.put("alter-share-offsets-missing-partition", this::alterMissingPartition);
        checks.put("alter-share-offsets-new-topic", this::alterNewTopic);
        checks.put("delete-share-offsets", this::delete);
        checks.put("delete-share-offsets-with-members", this::deleteNotEmpty);
        checks.put("delete-share-offsets-missing-topic", this::deleteMissingTopic);
        checks.put("delete-share-offsets-missing-group", this::deleteMissingGroup);
        checks.put("delete-share-offsets-starts-anew", this::deleteStartsAnew);
    }

    static Map<TopicPartition, SharePartitionOffsetInfo> offsets(Admin admin, String group) throws Exception {
        var found = Cluster.get(admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group));
        return found.entrySet().stream().filter(e -> e.getValue() != null)
                .collect(Collectors.toMap(Map.Entry::getKey, Map.Entry::getValue));
    }

    static List<Long> lags(Admin admin, String group) throws Exception {
        List<Long> lags = new ArrayList<>();
        offsets(admin, group).values().forEach(info -> lags.add(info.lag().orElse(-1L)));
        return lags;
    }

    private static void awaitLag(GroupWorld world, String group, long lag) throws Exception {
        try {
            Check.eventually("a lag of " + lag, () -> lags(world.admin, group).equals(List.of(lag)));
        } catch (AssertionError e) {
            throw new AssertionError(e.getMessage() + ", got " + offsets(world.admin, group), e);
        }
    }

    /** An empty group that has accepted the first two records of four, and released the others. */
    private static String emptied(GroupWorld world, String topic) throws Exception {
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic, "share.acquire.mode", "record_limit", "max.poll.records", "2");
        GroupWorld.take(consumer, 2, AcknowledgeType.ACCEPT);
        GroupWorld.commit(consumer);
        GroupWorld.take(consumer, 2, AcknowledgeType.RELEASE);
        GroupWorld.commit(consumer);
        world.close(consumer);
        ShareAdminChecks.awaitState(world, group, GroupState.EMPTY);
        return group;
    }

    private void startAndLag(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        awaitLag(world, group, 2);
        var info = offsets(world.admin, group).get(new TopicPartition(topic, 0));
        Check.equal(2L, info.startOffset(), "start offset");
        world.fill(topic, 4, 7);
        awaitLag(world, group, 5);
    }

    private void lagCountsDone(GroupWorld world) throws Exception {
        String topic = world.filled(6);
        String group = world.shareGroup();
        var consumer = world.explicit(group, topic);
        var found = GroupWorld.next(consumer);
        found.stream().filter(r -> r.offset() % 2 == 1).forEach(consumer::acknowledge);
        GroupWorld.commit(consumer);
        Check.equal(Set.of(0L), GroupWorld.starts(world.admin, group), "start offset");
        awaitLag(world, group, 3);
    }

    private void chosen(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(3);
        for (int partition = 0; partition < 3; partition++) {
            world.fill(topic, partition, 0, partition + 1);
        }
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 6);
        GroupWorld.commit(consumer);
        Check.eventually("three partitions of the group", () -> offsets(world.admin, group).size() == 3);
        var wanted = new TopicPartition(topic, 2);
        var spec = new ListShareGroupOffsetsSpec().topicPartitions(List.of(wanted));
        Check.eventually("the start offset behind what was accepted", () -> {
            var all = world.admin.listShareGroupOffsets(Map.of(group, spec));
            var found = Cluster.get(all.partitionsToOffsetInfo(group));
            Check.equal(Set.of(wanted), found.keySet(), "chosen partitions");
            return found.get(wanted).startOffset() == 3;
        });
    }

    private void missingTopic(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(4));
        var wanted = new TopicPartition(world.cluster.freshName(), 0);
        var spec = new ListShareGroupOffsetsSpec().topicPartitions(List.of(wanted));
        var found = Cluster.get(world.admin.listShareGroupOffsets(Map.of(group, spec)).partitionsToOffsetInfo(group));
        Check.that(found.get(wanted) == null, "offsets of a topic that does not exist: " + found);
    }

    private void missingGroup(GroupWorld world) throws Exception {
        Check.equal(Map.of(), offsets(world.admin, world.cluster.freshName()), "offsets of a group that does not exist");
    }

    private void manyGroups(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String first = emptied(world, topic);
        String second = emptied(world, topic);
        var spec = new ListShareGroupOffsetsSpec();
        var found = Cluster.get(world.admin.listShareGroupOffsets(Map.of(first, spec, second, spec)).all());
        Check.equal(Set.of(first, second), found.keySet(), "groups");
    }

    private static void alter(GroupWorld world, String group, TopicPartition partition, long offset) throws Exception {
        Cluster.get(world.admin.alterShareGroupOffsets(group, Map.of(partition, offset)).all());
    }

    private void alterBack(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        alter(world, group, new TopicPartition(topic, 0), 0);
        Check.equal(Set.of(0L), GroupWorld.starts(world.admin, group), "start offset");
        world.expectNext(group, topic, 4, List.of(0L, 1L, 2L, 3L));
    }

    private void alterForward(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        alter(world, group, new TopicPartition(topic, 0), 3);
        Check.equal(Set.of(3L), GroupWorld.starts(world.admin, group), "start offset");
        world.expectNext(group, topic, 4, List.of(3L));
    }

    /** Delivery counts and accepted records end with the old start offset. */
    private void alterClears(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        alter(world, group, new TopicPartition(topic, 0), 1);
        var found = GroupWorld.take(world.explicit(group, topic), 3, AcknowledgeType.ACCEPT);
        Check.equal(List.of(1L, 2L, 3L), GroupWorld.offsets(found), "records from the new start");
        Check.equal(Set.of(1), GroupWorld.counts(found), "delivery counts");
    }

    private void alterNotEmpty(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic), 1);
        Check.refused(GroupNotEmptyException.class, "a group with a member", () -> {
            alter(world, group, new TopicPartition(topic, 0), 0);
            return null;
        });
    }

    private void alterMissingTopic(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(4));
        Check.refused(UnknownTopicOrPartitionException.class, "a topic that does not exist", () -> {
            alter(world, group, new TopicPartition(world.cluster.freshName(), 0), 0);
            return null;
        });
    }

    private void alterMissingPartition(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        Check.refused(UnknownTopicOrPartitionException.class, "a partition that does not exist", () -> {
            alter(world, group, new TopicPartition(topic, 7), 0);
            return null;
        });
    }

    private void alterNewTopic(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(4));
        String other = world.filled(4);
        alter(world, group, new TopicPartition(other, 0), 2);
        world.expectNext(group, other, 4, List.of(2L, 3L));
    }

    private void delete(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        Cluster.get(world.admin.deleteShareGroupOffsets(group, Set.of(topic)).all());
        Check.equal(Map.of(), offsets(world.admin, group), "offsets after the deletion");
    }

    private void deleteNotEmpty(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic), 1);
        Check.refused(GroupNotEmptyException.class, "a group with a member",
                () -> Cluster.get(world.admin.deleteShareGroupOffsets(group, Set.of(topic)).all()));
    }

    private void deleteMissingTopic(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(4));
        Check.refused(ApiException.class, "a topic that does not exist", () -> Cluster.get(
                world.admin.deleteShareGroupOffsets(group, Set.of(world.cluster.freshName())).all()));
    }

    private void deleteMissingGroup(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        Check.refused(GroupIdNotFoundException.class, "a group that does not exist", () -> Cluster.get(
                world.admin.deleteShareGroupOffsets(world.cluster.freshName(), Set.of(topic)).all()));
    }

    private void deleteStartsAnew(GroupWorld world) throws Exception {
        String topic = world.filled(4);
        String group = emptied(world, topic);
        Cluster.get(world.admin.deleteShareGroupOffsets(group, Set.of(topic)).all());
        world.expectNext(group, topic, 4, List.of(0L, 1L, 2L, 3L));
    }
}
