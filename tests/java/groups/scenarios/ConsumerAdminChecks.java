package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;

/** Groups of the consumer protocol as an administrator sees, lists and deletes them. */
final class ConsumerAdminChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("describe-consumer-group-members", this::members);
        checks.put("describe-consumer-group-racks", this::racks);
        checks.put("describe-consumer-group-empty", this::empty);
        checks.put("describe-consumer-group-missing", this::missing);
        checks.put("describe-consumer-group-epochs", this::epochs);
        checks.put("describe-consumer-group-operations", this::operations);
        checks.put("describe-consumer-group-as-share-group", this::asShareGroup);
        checks.put("describe-consumer-group-as-classic-group", this::asClassicGroup);
        checks.put("list-groups-types", this::types);
        checks.put("list-groups-states", this::states);
        checks.put("list-groups-fields", this::fields);
        checks.put("delete-consumer-group", this::delete);
        checks.put("delete-consumer-group-with-members", this::deleteNotEmpty);
        checks.put("delete-consumer-group-share", this::deleteShareGroup);
    }

    static ConsumerGroupDescription describe(GroupWorld world, String group) throws Exception {
        return Cluster.get(world.admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    static boolean isStable(GroupWorld world, String group) throws Exception {
        try {
            return describe(world, group).groupState() == GroupState.STABLE;
        } catch (java.util.concurrent.ExecutionException e) {
            Check.that(e.getCause() instanceof GroupIdNotFoundException, "describing a group: " + e);
            return false;
        }
    }

    private static String active(GroupWorld world, String topic, int partitions) throws Exception {
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(partitions), member);
        GroupWorld.pollUntil("a stable group", () -> isStable(world, group), member);
        return group;
    }

    private static String emptied(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(1);
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1), member);
        world.close(member);
        Check.eventually("an empty group", () -> describe(world, group).groupState() == GroupState.EMPTY);
        return group;
    }

    private void members(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        var found = describe(world, active(world, topic, 2));
        Check.equal(GroupType.CONSUMER + " " + GroupState.STABLE, found.type() + " " + found.groupState(), "type, state");
        var member = found.members().iterator().next();
        Check.equal(Set.copyOf(Cluster.partitions(topic, 2)), member.assignment().topicPartitions(), "assignment");
        Check.equal(member.assignment(), member.targetAssignment().orElseThrow(), "target assignment");
        Check.equal(found.groupEpoch(), member.memberEpoch(), "epoch of the group and of its member");
        Check.equal(true, member.upgraded().orElseThrow(), "a member of the consumer protocol");
        Check.that(member.host().contains("127.0.0.1"), "host: " + member.host());
        Check.equal("uniform", found.partitionAssignor(), "default assignor");
    }

    private void racks(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        var member = world.member(
                group, world.cluster.topic(1), "client.rack", "west", "group.instance.id", "one", "client.id", "reader");
        GroupWorld.pollUntilSizes(List.of(1), member);
        var found = describe(world, group).members().iterator().next();
        Check.equal("west one reader", found.rackId().orElse("none") + " " + found.groupInstanceId().orElse("none") + " "
                + found.clientId(), "rack, instance and client");
    }

    private void empty(GroupWorld world) throws Exception {
        var found = describe(world, emptied(world));
        Check.equal(List.of(), List.copyOf(found.members()), "members");
        Check.equal(GroupType.CONSUMER, found.type(), "type");
        Check.equal(found.groupEpoch(), found.targetAssignmentEpoch(), "epochs of group and assignment");
    }

    private void missing(GroupWorld world) {
        Check.refused(GroupIdNotFoundException.class, "a group that does not exist",
                () -> describe(world, world.cluster.freshName()));
    }

    private void epochs(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        String group = world.cluster.freshName();
        var first = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(2), first);
        int before = describe(world, group).groupEpoch().orElseThrow();
        var second = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
        GroupWorld.pollUntil("a stable group", () -> isStable(world, group), first, second);
        var found = describe(world, group);
        Check.that(found.groupEpoch().orElseThrow() > before, "the epoch rises: " + found);
        Check.equal(found.groupEpoch(), found.targetAssignmentEpoch(), "epochs of group and assignment");
    }

    private void operations(GroupWorld world) throws Exception {
        String group = emptied(world);
        var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
        var found = Cluster.get(world.admin.describeConsumerGroups(List.of(group), options).all()).get(group);
        Check.equal(Set.of(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS), found.authorizedOperations(), "operations");
    }

    private void asShareGroup(GroupWorld world) throws Exception {
        String group = emptied(world);
        Check.refused(GroupIdNotFoundException.class, "a consumer group as a share group",
                () -> Cluster.get(world.admin.describeShareGroups(List.of(group)).all()));
    }

    private void asClassicGroup(GroupWorld world) throws Exception {
        String group = emptied(world);
        Check.refused(GroupIdNotFoundException.class, "a consumer group as a classic group",
                () -> Cluster.get(world.admin.describeClassicGroups(List.of(group)).all()));
    }

    private static Set<String> listed(GroupWorld world, ListGroupsOptions options) throws Exception {
        return Cluster.get(world.admin.listGroups(options).all()).stream()
                .map(g -> g.groupId()).collect(Collectors.toSet());
    }

    private void types(GroupWorld world) throws Exception {
        String group = active(world, world.cluster.topic(1), 1);
        Check.that(listed(world, new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER))).contains(group), "listed");
        Check.that(listed(world, ListGroupsOptions.forConsumerGroups()).contains(group), "listed as a consumer group");
        for (GroupType other : List.of(GroupType.SHARE, GroupType.CLASSIC)) {
            var found = listed(world, new ListGroupsOptions().withTypes(Set.of(other)));
            Check.that(!found.contains(group), "listed among groups of type " + other);
        }
    }

    private void states(GroupWorld world) throws Exception {
        String group = active(world, world.cluster.topic(1), 1);
        var options = new ListGroupsOptions();
        Check.that(listed(world, options.inGroupStates(Set.of(GroupState.STABLE))).contains(group), "listed as stable");
        Check.that(!listed(world, options.inGroupStates(Set.of(GroupState.EMPTY))).contains(group), "listed as empty");
    }

    private void fields(GroupWorld world) throws Exception {
        String group = emptied(world);
        var found = Cluster.get(world.admin.listGroups().all()).stream()
                .filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
        Check.equal("CONSUMER consumer EMPTY", found.type().orElseThrow().name() + " " + found.protocol() + " "
                + found.groupState().orElseThrow().name(), "type, protocol and state");
    }

    private void delete(GroupWorld world) throws Exception {
        String group = emptied(world);
        Cluster.get(world.admin.deleteConsumerGroups(List.of(group)).all());
        Check.refused(GroupIdNotFoundException.class, "the deleted group", () -> describe(world, group));
    }

    private void deleteNotEmpty(GroupWorld world) throws Exception {
        String group = active(world, world.cluster.topic(1), 1);
        Check.refused(GroupNotEmptyException.class, "a group with members",
                () -> Cluster.get(world.admin.deleteConsumerGroups(List.of(group)).all()));
    }

    private void deleteShareGroup(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic), 1);
        Check.refused(GroupNotEmptyException.class, "a share group with members",
                () -> Cluster.get(world.admin.deleteConsumerGroups(List.of(group)).all()));
    }
}
