package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.DescribeShareGroupsOptions;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ShareGroupDescription;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;

/** Share groups as an administrator sees, lists and deletes them. */
final class ShareAdminChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("describe-share-group-stable", this::stable);
        checks.put("describe-share-group-members", this::members);
        checks.put("describe-share-group-empty", this::empty);
        checks.put("describe-share-group-missing", this::missing);
        checks.put("describe-share-group-operations", this::operations);
        checks.put("describe-share-group-epochs", this::epochs);
        checks.put("describe-share-group-of-another-type", this::ofAnotherType);
        checks.put("list-groups-share-type", this::listType);
        checks.put("list-groups-share-states", this::listStates);
        checks.put("list-groups-share-protocol", this::listProtocol);
        checks.put("list-groups-share-is-no-consumer-group", this::listedApart);
        checks.put("delete-share-group", this::delete);
        checks.put("delete-share-group-with-members", this::deleteNotEmpty);
        checks.put("delete-share-group-missing", this::deleteMissing);
        checks.put("delete-share-group-of-another-type", this::deleteOtherType);
        checks.put("delete-share-group-starts-anew", this::startsAnew);
    }

    static ShareGroupDescription describe(GroupWorld world, String group) throws Exception {
        return world.retry(() -> Cluster.get(world.admin.describeShareGroups(List.of(group)).all()).get(group));
    }

    static void awaitState(GroupWorld world, String group, GroupState state) throws Exception {
        Check.eventually(group + " to be " + state, () -> describe(world, group).groupState() == state);
    }

    /** A share group that had a member. */
    private static String emptied(GroupWorld world, String topic) throws Exception {
        String group = world.shareGroup();
        var consumer = world.share(group, topic);
        GroupWorld.take(consumer, 1);
        GroupWorld.commit(consumer);
        world.close(consumer);
        awaitState(world, group, GroupState.EMPTY);
        return group;
    }

    private void stable(GroupWorld world) throws Exception {
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, world.filled(1)), 1);
        var found = describe(world, group);
        Check.equal(group + " STABLE", found.groupId() + " " + found.groupState().name(), "name and state");
        Check.that(found.coordinator() != null && found.coordinator().id() >= 0, "coordinator: " + found.coordinator());
    }

    private void members(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(2);
        world.fill(topic, 0, 1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic, "client.id", "worker", "client.rack", "west"), 1);
        Check.eventually("the assignment", () -> describe(world, group).members().stream()
                .allMatch(m -> m.assignment().topicPartitions().size() == 2));
        var member = describe(world, group).members().iterator().next();
        Check.equal("worker", member.clientId(), "client id");
        Check.equal("west", member.rackId().orElse("none"), "rack");
        Check.that(member.host().contains("127.0.0.1"), "host: " + member.host());
        Check.that(member.memberEpoch() > 0, "epoch: " + member.memberEpoch());
        Check.equal(Set.copyOf(Cluster.partitions(topic, 2)), member.assignment().topicPartitions(), "assignment");
        java.util.Base64.getUrlDecoder().decode(member.consumerId());
    }

    private void empty(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        var found = describe(world, group);
        Check.equal(List.of(), List.copyOf(found.members()), "members");
        Check.equal(GroupState.EMPTY, found.groupState(), "state");
    }

    private void missing(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        Check.refused(GroupIdNotFoundException.class, "a group that does not exist",
                () -> Cluster.get(world.admin.describeShareGroups(List.of(group)).all()));
    }

    private void operations(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        var options = new DescribeShareGroupsOptions().includeAuthorizedOperations(true);
        var found = Cluster.get(world.admin.describeShareGroups(List.of(group), options).all()).get(group);
        Check.equal(Set.of(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
                AclOperation.ALTER_CONFIGS), found.authorizedOperations(), "operations");
        Check.that(describe(world, group).authorizedOperations() == null
                || describe(world, group).authorizedOperations().isEmpty(), "operations without the option");
    }

    private void epochs(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic), 1);
        int before = describe(world, group).groupEpoch();
        world.share(group, topic).poll(Cluster.POLL);
        Check.eventually("a second member", () -> describe(world, group).members().size() == 2);
        Check.eventually("equal epochs", () -> {
            var now = describe(world, group);
            return now.groupEpoch() > before && now.groupEpoch() == now.targetAssignmentEpoch();
        });
    }

    private void ofAnotherType(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        Check.refused(GroupIdNotFoundException.class, "a share group as a consumer group",
                () -> Cluster.get(world.admin.describeConsumerGroups(List.of(group)).all()));
        Check.refused(GroupIdNotFoundException.class, "a share group as a classic group",
                () -> Cluster.get(world.admin.describeClassicGroups(List.of(group)).all()));
    }

    private static Set<String> listed(GroupWorld world, ListGroupsOptions options) throws Exception {
        return Cluster.get(world.admin.listGroups(options).all()).stream()
                .map(g -> g.groupId()).collect(Collectors.toSet());
    }

    private void listType(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        var all = Cluster.get(world.admin.listGroups(ListGroupsOptions.forShareGroups()).all());
        Check.that(all.stream().allMatch(g -> g.type().orElseThrow() == GroupType.SHARE), "only share groups: " + all);
        Check.that(all.stream().anyMatch(g -> g.groupId().equals(group)), "the group is listed");
        for (GroupType other : List.of(GroupType.CONSUMER, GroupType.CLASSIC)) {
            var found = listed(world, new ListGroupsOptions().withTypes(Set.of(other)));
            Check.that(!found.contains(group), "listed among groups of type " + other);
        }
        Check.that(listed(world, new ListGroupsOptions()).contains(group), "listed without a type");
    }

    private void listStates(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        var options = ListGroupsOptions.forShareGroups();
        Check.that(listed(world, options.inGroupStates(Set.of(GroupState.EMPTY))).contains(group), "listed as empty");
        Check.that(!listed(world, options.inGroupStates(Set.of(GroupState.STABLE))).contains(group), "listed as stable");
    }

    private void listProtocol(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        var found = Cluster.get(world.admin.listGroups(ListGroupsOptions.forShareGroups()).all()).stream()
                .filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
        Check.equal("share EMPTY false",
                found.protocol() + " " + found.groupState().orElseThrow().name() + " " + found.isSimpleConsumerGroup(),
                "protocol, state and whether it is a simple consumer group");
    }

    private void listedApart(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        Check.that(!listed(world, ListGroupsOptions.forConsumerGroups()).contains(group), "listed as a consumer group");
    }

    private void delete(GroupWorld world) throws Exception {
        String group = emptied(world, world.filled(1));
        Cluster.get(world.admin.deleteShareGroups(List.of(group)).all());
        Check.refused(GroupIdNotFoundException.class, "the deleted group",
                () -> Cluster.get(world.admin.describeShareGroups(List.of(group)).all()));
        Check.that(!listed(world, ListGroupsOptions.forShareGroups()).contains(group), "the deleted group is listed");
    }

    private void deleteNotEmpty(GroupWorld world) throws Exception {
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, world.filled(1)), 1);
        Check.refused(GroupNotEmptyException.class, "a group with a member",
                () -> Cluster.get(world.admin.deleteShareGroups(List.of(group)).all()));
    }

    private void deleteMissing(GroupWorld world) throws Exception {
        Check.refused(GroupIdNotFoundException.class, "a group that does not exist",
                () -> Cluster.get(world.admin.deleteShareGroups(List.of(world.cluster.freshName())).all()));
    }

    private void deleteOtherType(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        var offset = new org.apache.kafka.clients.consumer.OffsetAndMetadata(1);
        Cluster.get(world.admin.alterConsumerGroupOffsets(
                group, Map.of(new TopicPartition(world.filled(1), 0), offset)).all());
        Cluster.get(world.admin.deleteShareGroups(List.of(group)).all()); // the request has no type
        Check.that(!listed(world, new ListGroupsOptions()).contains(group), "the deleted group is listed");
    }

    private void startsAnew(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = emptied(world, topic);
        Cluster.get(world.admin.deleteShareGroups(List.of(group)).all());
        world.configure(group, "share.auto.offset.reset", "earliest");
        var found = GroupWorld.take(world.share(group, topic), 1);
        Check.equal(Set.of(1), GroupWorld.counts(found), "delivery count in the new group");
    }
}
