package scenarios;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;

/** Static members: a restart moves nothing, and a second process under the same name fences the first. */
final class GroupStatic implements Scenario {
    @Override
    public List<String> expectedWarnings() {
        return List.of( // what the fenced member says
                "another consumer with the same group.instance.id has registered with a different member.id",
                "Caught fenced group.instance.id");
    }

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = cluster.freshName();
        Flow flow = new Flow(cluster, topic, 4);
        List<Member> all = new ArrayList<>();
        Member one = start(cluster, group, topic, "one", all);
        one.awaitAssignment(0, 1, 2, 3);
        Member two = start(cluster, group, topic, "two", all);
        two.await("a half", () -> two.assignment().size() == 2);
        one.await("a half", () -> one.assignment().size() == 2);
        // The member that stays may hear of that rebalance later.
        one.await("the rebalance that gave them away", () -> one.generation() == two.generation());
        Set<Integer> half = two.assignment();
        int rebalances = one.rebalances();

        two.leave();
        Member closed = start(cluster, group, topic, "two", all);
        closed.await("its half again", () -> closed.assignment().equals(half) && !closed.values().isEmpty());
        closed.kill();
        Member killed = start(cluster, group, topic, "two", all);
        killed.await("its half again", () -> killed.assignment().equals(half) && !killed.values().isEmpty());
        Check.equal(rebalances, one.rebalances(), "rebalances of the member that stayed");

        Member heir = start(cluster, group, topic, "two", all);
        heir.await("the half of the member that it fences", () -> heir.assignment().equals(half));
        Check.eventually("the end of the fenced member", () -> killed.said("failed"));
        Check.that(killed.said("failed org.apache.kafka.common.errors.FencedInstanceIdException"), "another failure");
        flow.stopAndAwait(all);
        one.leave();
        heir.leave();
    }

    private static Member start(Cluster cluster, String group, String topic, String name, List<Member> all)
            throws Exception {
        List<String> settings = Arrays.asList("group.instance.id", name, "session.timeout.ms", "25000",
                "heartbeat.interval.ms", "200",
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        Member member = cluster.member(group, topic, settings.toArray(new String[0]));
        all.add(member);
        return member;
    }
}
