package scenarios;

import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.ClassicGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.common.ClassicGroupState;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.errors.GroupIdNotFoundException;

/** Groups of every kind, as clients since 4.1 list them (KIP-1043): by state, by type, by protocol. */
final class AdminGroupListing implements Scenario {
    private Cluster cluster;

    @Override
    public void run(Cluster given) throws Exception {
        cluster = given;
        String topic = cluster.topic(1);
        String group = cluster.freshName();
        Member member = cluster.member(group, topic);
        member.awaitAssignment(0);
        GroupListing listing = Cluster.get(cluster.admin.listGroups().all()).stream()
                .filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
        Check.equal(GroupType.CLASSIC, listing.type().orElse(null), "type");
        Check.equal("consumer", listing.protocol(), "protocol");
        Check.equal(GroupState.STABLE, listing.groupState().orElse(null), "state");
        Check.that(!listing.isSimpleConsumerGroup(), "a group with members counts as simple");
        var options = new ListGroupsOptions();
        Check.that(listed(options.inGroupStates(Set.of(GroupState.STABLE))).contains(group), "by its state");
        Check.that(!listed(new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY))).contains(group), "state");
        Check.that(listed(ListGroupsOptions.forConsumerGroups()).contains(group), "by its protocol");
        Check.that(!listed(ListGroupsOptions.forShareGroups()).contains(group), "a classic group counts as shared");

        ClassicGroupDescription described =
                Cluster.get(cluster.admin.describeClassicGroups(List.of(group)).all()).get(group);
        Check.equal(ClassicGroupState.STABLE, described.state(), "described state");
        Check.equal(1, described.members().size(), "members");
        member.leave();
        Check.refused(GroupIdNotFoundException.class, "describing nothing",
                () -> Cluster.get(cluster.admin.describeConsumerGroups(List.of(cluster.freshName())).all()));
    }

    private Set<String> listed(ListGroupsOptions options) throws Exception {
        return Cluster.get(cluster.admin.listGroups(options).all()).stream()
                .map(GroupListing::groupId).collect(Collectors.toSet());
    }
}
