package scenarios;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.errors.UnsupportedAssignorException;

/** Members of groups of the consumer protocol (KIP-848): assignment, static members, and how they leave. */
final class ConsumerMemberChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("member-max-poll-interval-exceeded", this::maxPollInterval);
        checks.put("member-alone-has-all", this::alone);
        checks.put("member-second-takes-half", this::half);
        checks.put("member-more-than-partitions", this::more);
        checks.put("member-leaves", this::leaves);
        checks.put("member-keeps-partitions-when-another-joins", this::sticky);
        checks.put("member-partitions-added", this::partitionsAdded);
        checks.put("member-subscription-changes", this::subscriptionChanges);
        checks.put("member-different-subscriptions", this::differentSubscriptions);
        checks.put("member-unsubscribes", this::unsubscribes);
        checks.put("member-listener-calls", this::listenerCalls);
        checks.put("member-topic-deleted", this::topicDeleted);
        checks.put("assignor-range", this::range);
        checks.put("assignor-uniform", this::uniform);
        checks.put("assignor-unknown", this::unknownAssignor);
        checks.put("static-restart-keeps-assignment", this::staticRestart);
        checks.put("static-instance-in-use", this::staticInUse);
        checks.put("static-removed-by-admin", this::staticRemoved);
        checks.put("static-close-with-leave", this::staticLeave);
        checks.put("member-group-metadata", this::groupMetadata);
        for (String setting : List.of("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")) {
            checks.put("consumer-setting-" + setting.replace('.', '-'), world -> Check.refused(ConfigException.class,
                    "the setting " + setting, () -> world.consumer("g", setting, "6000")));
        }
        checks.put("consumer-setting-group-remote-assignor", world -> Check.refused(ConfigException.class, "an assignor",
                () -> world.consumer("g", "group.protocol", "classic", "group.remote.assignor", "range")));
    }

    private void maxPollInterval(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        Set<Integer> lost = new TreeSet<>();
        var slow = world.consumer(group, "max.poll.interval.ms", "5000");
        slow.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {}

            @Override
            public void onPartitionsLost(Collection<TopicPartition> partitions) {
                lost.addAll(GroupWorld.numbers(partitions));
            }
        });
        GroupWorld.pollUntilSizes(List.of(2), slow);
        var other = world.member(group, topic);
        GroupWorld.pollUntil("all partitions of the slow member", () -> other.assignment().size() == 2, other);
        GroupWorld.pollUntilSizes(List.of(1, 1), slow, other);
        Check.that(!lost.isEmpty(), "no partition was lost");
    }

    private void alone(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        var member = world.member(world.cluster.freshName(), topic);
        GroupWorld.pollUntilSizes(List.of(4), member);
        Check.equal(Set.copyOf(Cluster.partitions(topic, 4)), member.assignment(), "assignment");
    }

    private void half(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(4), first);
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(2, 2), first, second);
        Set<TopicPartition> all = new java.util.HashSet<>(first.assignment());
        all.addAll(second.assignment());
        Check.equal(4, all.size(), "partitions of both");
    }

    private void more(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1), first);
        var second = world.member(group, topic);
        world.fill(topic, 0, 3);
        var found = GroupWorld.pollUntil("records", () -> first.position(new TopicPartition(topic, 0)) == 3, first, second);
        Check.equal(3, found.size(), "records");
        Check.equal(0, second.assignment().size(), "partitions of the member without work");
    }

    private void leaves(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(2, 2), first, second);
        world.close(second);
        GroupWorld.pollUntilSizes(List.of(4), first);
    }

    private void sticky(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(6);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(3, 3), first, second);
        Set<TopicPartition> before = first.assignment();
        Set<TopicPartition> others = second.assignment();
        var third = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(2, 2, 2), first, second, third);
        Check.that(before.containsAll(first.assignment()), "the first member got partitions of another");
        Check.that(others.containsAll(second.assignment()), "the second member got partitions of another");
    }

    private void partitionsAdded(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        var member = world.member(world.cluster.freshName(), topic);
        GroupWorld.pollUntilSizes(List.of(2), member);
        Cluster.get(world.admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all());
        GroupWorld.pollUntilSizes(List.of(5), member);
    }

    private void subscriptionChanges(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String other = world.cluster.topic(3);
        var member = world.member(world.cluster.freshName(), topic);
        GroupWorld.pollUntilSizes(List.of(2), member);
        member.subscribe(List.of(other));
        GroupWorld.pollUntilSizes(List.of(3), member);
        Check.equal(Set.copyOf(Cluster.partitions(other, 3)), member.assignment(), "assignment");
    }

    private void differentSubscriptions(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String other = world.cluster.topic(3);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        var second = world.member(group, other);
        GroupWorld.pollUntilSizes(List.of(2, 3), first, second);
    }

    private void unsubscribes(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
        first.unsubscribe();
        Check.equal(Set.of(), first.assignment(), "assignment");
        GroupWorld.pollUntilSizes(List.of(2), second);
    }

    private void listenerCalls(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        Set<Integer> assigned = new TreeSet<>();
        Set<Integer> revoked = new TreeSet<>();
        var first = world.consumer(group);
        first.subscribe(List.of(topic), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                assigned.addAll(GroupWorld.numbers(partitions));
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                revoked.addAll(GroupWorld.numbers(partitions));
            }
        });
        // The client can show an assignment before it calls the listener.
        GroupWorld.pollUntil("calls for two partitions", () -> assigned.equals(Set.of(0, 1)), first);
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
        Check.equal(GroupWorld.numbers(second.assignment()), revoked, "partitions that were revoked");
    }

    private void topicDeleted(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String other = world.cluster.topic(1);
        var member = world.consumer(world.cluster.freshName(), "allow.auto.create.topics", "false");
        member.subscribe(List.of(topic, other));
        GroupWorld.pollUntilSizes(List.of(3), member);
        Cluster.get(world.admin.deleteTopics(List.of(topic)).all());
        GroupWorld.pollUntilSizes(List.of(1), member);
    }

    private void range(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String other = world.cluster.topic(4);
        String group = world.cluster.freshName();
        List<KafkaConsumer<String, String>> members = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            var member = world.consumer(group, "group.remote.assignor", "range");
            member.subscribe(List.of(topic, other));
            members.add(member);
        }
        GroupWorld.pollUntilSizes(List.of(4, 4), members.get(0), members.get(1));
        Set<Integer> numbers = GroupWorld.numbers(members.get(0).assignment());
        Check.that(numbers.equals(Set.of(0, 1)) || numbers.equals(Set.of(2, 3)), "co-partitioned ranges: " + numbers);
    }

    private void uniform(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(5);
        String group = world.cluster.freshName();
        var first = world.member(group, topic, "group.remote.assignor", "uniform");
        var second = world.member(group, topic, "group.remote.assignor", "uniform");
        GroupWorld.pollUntil("three and two", () -> first.assignment().size() + second.assignment().size() == 5
                && Math.abs(first.assignment().size() - second.assignment().size()) == 1, first, second);
        var described = Cluster.get(world.admin.describeConsumerGroups(List.of(group)).all()).get(group);
        Check.equal("uniform", described.partitionAssignor(), "assignor");
    }

    private void unknownAssignor(GroupWorld world) throws Exception {
        var member = world.member(world.cluster.freshName(), world.cluster.topic(1), "group.remote.assignor", "fairest");
        Check.refusedAtLast(UnsupportedAssignorException.class, "an assignor that the cluster lacks",
                () -> member.poll(Cluster.POLL));
    }

    private void staticRestart(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var first = world.member(group, topic, "group.instance.id", "one");
        var second = world.member(group, topic, "group.instance.id", "two");
        GroupWorld.pollUntilSizes(List.of(2, 2), first, second);
        Set<TopicPartition> before = second.assignment();
        world.close(second);
        var back = world.member(group, topic, "group.instance.id", "two");
        GroupWorld.pollUntilSizes(List.of(2, 2), first, back);
        Check.equal(before, back.assignment(), "assignment after the restart");
    }

    private void staticInUse(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        var first = world.member(group, topic, "group.instance.id", "one");
        GroupWorld.pollUntilSizes(List.of(2), first);
        var second = world.member(group, topic, "group.instance.id", "one");
        Check.refusedAtLast(UnreleasedInstanceIdException.class, "an instance id that a live member has",
                () -> second.poll(Cluster.POLL));
        GroupWorld.pollUntilSizes(List.of(2), first);
    }

    private void staticRemoved(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        var first = world.member(group, topic, "group.instance.id", "one");
        var second = world.member(group, topic, "group.instance.id", "two");
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
        world.close(first);
        var removed = List.of(new org.apache.kafka.clients.admin.MemberToRemove("one"));
        Cluster.get(world.admin.removeMembersFromConsumerGroup(
                group, new RemoveMembersFromConsumerGroupOptions(removed)).all());
        GroupWorld.pollUntilSizes(List.of(2), second);
    }

    private void staticLeave(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        var first = world.member(group, topic, "group.instance.id", "one");
        var second = world.member(group, topic, "group.instance.id", "two");
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
        first.close(CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP));
        GroupWorld.pollUntilSizes(List.of(2), second);
    }

    private void groupMetadata(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        var member = world.member(group, world.cluster.topic(1), "group.instance.id", "one");
        GroupWorld.pollUntilSizes(List.of(1), member);
        var found = member.groupMetadata();
        Check.equal(group + " one", found.groupId() + " " + found.groupInstanceId().orElseThrow(), "group and instance");
        Check.that(found.generationId() > 0 && !found.memberId().isEmpty(), "epoch and member id: " + found);
    }
}
