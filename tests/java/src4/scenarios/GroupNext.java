package scenarios;

import java.util.List;
import java.util.Map;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;

/** A group of the consumer protocol (KIP-848), where the coordinator assigns: join and leave. */
final class GroupNext implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = cluster.freshName();
        Flow flow = new Flow(cluster, topic, 4);
        Member first = cluster.member(group, topic, "group.protocol", "consumer");
        first.awaitAssignment(0, 1, 2, 3);
        Member second = cluster.member(group, topic, "group.protocol", "consumer");
        second.await("a half", () -> second.assignment().size() == 2);
        first.await("a half", () -> first.assignment().size() == 2);
        Check.equal(2, first.everRevoked().size(), "partitions that the first member gave up");
        var described = Cluster.get(cluster.admin.describeConsumerGroups(List.of(group)).all()).get(group);
        Check.equal(Map.of(GroupType.CONSUMER, GroupState.STABLE), Map.of(described.type(), described.groupState()),
                "type and state");
        second.leave();
        first.awaitAssignment(0, 1, 2, 3);
        flow.stopAndAwait(List.of(first, second));
        first.leave();
    }
}
