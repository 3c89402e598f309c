package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** Groups, with members and without: list, describe, offsets read and written, members removed, groups deleted. */
final class AdminGroups implements Scenario {
    private Cluster cluster;
    private String topic;
    private TopicPartition first;

    @Override
    public void run(Cluster given) throws Exception {
        cluster = given;
        topic = cluster.topic(2);
        first = new TopicPartition(topic, 0);
        cluster.fill(topic, 0, 0, 10);
        String group = cluster.freshName();
        Member member = cluster.member(group, topic, "group.instance.id", "statue", "client.id", "sculptor",
                "session.timeout.ms", "30000", "heartbeat.interval.ms", "500");
        member.awaitAssignment(0, 1);
        member.await("records", () -> member.values().size() == 10);
        Check.eventually("the commit", () -> Long.valueOf(10).equals(offsets(group).get(first)));
        active(group);
        member.leave();
        removed(group);
        empty(group);
    }

    private Map<TopicPartition, Long> offsets(String group) throws Exception {
        return Cluster.get(cluster.admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
                .entrySet().stream().filter(e -> e.getValue() != null)
                .collect(Collectors.toMap(Map.Entry::getKey, e -> e.getValue().offset()));
    }

    private ConsumerGroupDescription describe(String group) throws Exception {
        return Cluster.get(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    @SuppressWarnings({"deprecation", "removal"}) // what clients before 4.0 have
    private Set<String> listed() throws Exception {
        return Cluster.get(cluster.admin.listConsumerGroups().all()).stream()
                .map(ConsumerGroupListing::groupId).collect(Collectors.toSet());
    }

    @SuppressWarnings({"deprecation", "removal"})
    private void active(String group) throws Exception {
        Check.that(listed().contains(group), "the group is not listed");
        ConsumerGroupDescription described = describe(group);
        Check.equal("Stable", described.state().toString(), "state");
        Check.equal("range", described.partitionAssignor(), "assignor");
        Check.that(described.coordinator().port() > 0, "no coordinator");
        Check.equal(1, described.members().size(), "members");
        MemberDescription member = described.members().iterator().next();
        Check.equal("statue", member.groupInstanceId().orElse(null), "instance id");
        Check.equal("sculptor", member.clientId(), "client id");
        Check.that(member.host().contains("127.0.0.1"), "host " + member.host());
        Check.equal(new HashSet<>(Cluster.partitions(topic, 2)), member.assignment().topicPartitions(), "assignment");

        Check.refused(GroupNotEmptyException.class, "deleting an active group",
                () -> Cluster.get(cluster.admin.deleteConsumerGroups(List.of(group)).all()));
        Check.refused(UnknownMemberIdException.class, "offsets of an active group", () -> alter(group, 3, ""));
        Check.refused(GroupSubscribedToTopicException.class, "deleting offsets that are in use",
                () -> Cluster.get(cluster.admin.deleteConsumerGroupOffsets(group, Set.of(first)).all()));
    }

    private Object alter(String group, long offset, String metadata) throws Exception {
        return Cluster.get(cluster.admin.alterConsumerGroupOffsets(
                group, Map.of(first, new OffsetAndMetadata(offset, metadata))).all());
    }

    /** A static member that closed is still one, until it is removed by its name. */
    @SuppressWarnings({"deprecation", "removal"})
    private void removed(String group) throws Exception {
        Check.equal(1, describe(group).members().size(), "members after a static one closed");
        Cluster.get(cluster.admin.removeMembersFromConsumerGroup(group,
                new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("statue")))).all());
        Check.eventually("an empty group", () -> describe(group).state().toString().equals("Empty"));
        Check.refused(UnknownMemberIdException.class, "removing who is not there",
                () -> Cluster.get(cluster.admin.removeMembersFromConsumerGroup(group,
                        new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("statue")))).all()));
    }

    private void empty(String group) throws Exception {
        alter(group, 3, "rewound");
        Check.equal(3L, offsets(group).get(first), "offset after altering it");
        String other = cluster.freshName();
        alter(other, 7, "a group of nobody");
        var several = cluster.admin.listConsumerGroupOffsets(Map.of(
                group, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(first)),
                other, new ListConsumerGroupOffsetsSpec()));
        OffsetAndMetadata found = Cluster.get(several.partitionsToOffsetAndMetadata(other)).get(first);
        Check.equal(new OffsetAndMetadata(7, "a group of nobody"), found, "offset of a group that was made by it");
        Check.equal("rewound", Cluster.get(several.partitionsToOffsetAndMetadata(group)).get(first).metadata(), "why");

        Cluster.get(cluster.admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
        Check.that(!offsets(group).containsKey(first), "an offset is there after it was deleted");
        Cluster.get(cluster.admin.deleteConsumerGroups(List.of(other)).all());
        Check.that(!listed().contains(other), "a deleted group is listed");
        Check.equal(Map.of(), offsets(other), "offsets of a deleted group");
        Check.refused(GroupIdNotFoundException.class, "deleting a deleted group",
                () -> Cluster.get(cluster.admin.deleteConsumerGroups(List.of(other)).all()));
    }
}
