package scenarios;

import java.util.List;
import java.util.Set;

/** Static members of a group of the consumer protocol: a restart moves nothing. */
final class GroupNextStatic implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = cluster.freshName();
        Flow flow = new Flow(cluster, topic, 4);
        Member first = start(cluster, group, topic, "one");
        first.awaitAssignment(0, 1, 2, 3);
        Member second = start(cluster, group, topic, "two");
        second.await("a half", () -> second.assignment().size() == 2);
        first.await("a half", () -> first.assignment().size() == 2);
        Set<Integer> half = second.assignment();
        Set<Integer> other = first.assignment();
        second.leave();
        Member back = start(cluster, group, topic, "two");
        back.await("its half again", () -> back.assignment().equals(half) && !back.values().isEmpty());
        Check.equal(other, first.assignment(), "partitions of the member that stayed");
        flow.stopAndAwait(List.of(first, second, back));
        first.leave();
        back.leave();
    }

    private static Member start(Cluster cluster, String group, String topic, String name) throws Exception {
        return cluster.member(group, topic, "group.protocol", "consumer", "group.instance.id", name);
    }
}
