package scenarios;

import java.util.List;
import java.util.Set;

/** A group of the classic protocol with the range assignor: join, leave, kill, under a steady flow of records. */
final class GroupRange implements Scenario {
    private static final String[] SETTINGS = {
        "partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor",
        "session.timeout.ms", "6000", "heartbeat.interval.ms", "200"
    };

    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(4);
        String group = cluster.freshName();
        Flow flow = new Flow(cluster, topic, 4);
        Member first = cluster.member(group, topic, SETTINGS);
        first.awaitAssignment(0, 1, 2, 3);

        Member second = cluster.member(group, topic, SETTINGS);
        second.await("a half", () -> second.assignment().size() == 2);
        first.await("a half", () -> first.assignment().size() == 2);
        Check.equal(Set.of(0, 1, 2, 3), first.everRevoked(), "what an eager member gives up when another joins");
        second.leave();
        first.awaitAssignment(0, 1, 2, 3);

        Member third = cluster.member(group, topic, SETTINGS);
        third.await("records", () -> third.assignment().size() == 2 && !third.values().isEmpty());
        third.kill();
        first.awaitAssignment(0, 1, 2, 3);
        flow.stopAndAwait(List.of(first, second, third));
        first.leave();
    }
}
