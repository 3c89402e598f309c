package scenarios;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** A cooperative group: who stays keeps what it has while others join, leave and are killed. */
final class GroupCooperative implements Scenario {
    private static final String[] SETTINGS = {
        "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "session.timeout.ms", "6000", "heartbeat.interval.ms", "200"
    };
    private static final Set<Integer> ALL = Set.of(0, 1, 2, 3, 4, 5);

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(6);
        String group = cluster.freshName();
        Flow flow = new Flow(cluster, topic, 6);
        Member first = cluster.member(group, topic, SETTINGS);
        first.awaitAssignment(0, 1, 2, 3, 4, 5);

        Member second = cluster.member(group, topic, SETTINGS);
        balanced(3, first, second);
        Check.equal(3, first.everRevoked().size(), "partitions that the first member gave up");
        Set<Integer> kept = first.assignment();

        Member third = cluster.member(group, topic, SETTINGS);
        balanced(2, first, second, third);
        Check.that(kept.containsAll(first.assignment()), "the first member got others than it had: " + kept);
        third.await("records", () -> !third.values().isEmpty());
        third.leave();
        balanced(3, first, second);

        Set<Integer> before = first.assignment();
        second.await("records", () -> !second.values().isEmpty());
        second.kill();
        first.awaitAssignment(0, 1, 2, 3, 4, 5);
        Set<Integer> lost = new TreeSet<>(first.everRevoked());
        lost.retainAll(before);
        Check.that(before.size() == 3, "the first member had " + before);
        flow.stopAndAwait(List.of(first, second, third));
        Check.that(first.said("assigned"), "no assignment was told");
        first.leave();
    }

    /** Every partition has one owner, and each member as many as the others. */
    private static void balanced(int each, Member... members) throws Exception {
        members[0].await(each + " partitions a member", () -> {
            Set<Integer> owned = new TreeSet<>();
            for (Member member : members) {
                if (member.assignment().size() != each) {
                    return false;
                }
                owned.addAll(member.assignment());
            }
            return owned.equals(ALL);
        });
    }
}
