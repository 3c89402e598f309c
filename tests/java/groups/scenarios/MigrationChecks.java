package scenarios;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.GroupType;

/** Groups that change their protocol, with members of both, also while records flow. */
final class MigrationChecks implements GroupCheck.Group {
    private static final String[] CLASSIC = {"group.protocol", "classic", "partition.assignment.strategy",
        "org.apache.kafka.clients.consumer.CooperativeStickyAssignor", "heartbeat.interval.ms", "300"};

    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("migration-offline-to-consumer", this::offlineUp);
        checks.put("migration-offline-to-classic", this::offlineDown);
        checks.put("migration-online-to-consumer", this::onlineUp);
        checks.put("migration-online-to-classic", this::onlineDown);
        checks.put("migration-under-load", this::underLoad);
        checks.put("migration-both-protocols-share-partitions", this::both);
    }

    private static void awaitType(GroupWorld world, String group, GroupType type, KafkaConsumer<String, String> member)
            throws Exception {
        GroupWorld.pollUntil("a group of type " + type,
                () -> ConsumerAdminChecks.describe(world, group).type() == type, member);
    }

    private void offlineUp(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var old = world.member(group, topic, CLASSIC);
        GroupWorld.pollUntil("the records", () -> !old.assignment().isEmpty()
                && old.position(old.assignment().iterator().next()) == 3, old);
        old.commitSync();
        world.close(old);
        world.fill(topic, 3, 5);
        var member = world.member(group, topic);
        var found = GroupWorld.pollUntil("the rest", () -> !member.assignment().isEmpty()
                && member.position(member.assignment().iterator().next()) == 5, member);
        Check.equal(List.of(3L, 4L), GroupWorld.offsets(found), "records after the committed offset");
        awaitType(world, group, GroupType.CONSUMER, member);
    }

    private void offlineDown(GroupWorld world) throws Exception {
        String topic = world.filled(3);
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        GroupWorld.pollUntil("the records", () -> !member.assignment().isEmpty()
                && member.position(member.assignment().iterator().next()) == 3, member);
        member.commitSync();
        world.close(member);
        world.fill(topic, 3, 5);
        var old = world.member(group, topic, CLASSIC);
        var found = GroupWorld.pollUntil("the rest", () -> !old.assignment().isEmpty()
                && old.position(old.assignment().iterator().next()) == 5, old);
        Check.equal(List.of(3L, 4L), GroupWorld.offsets(found), "records after the committed offset");
        awaitType(world, group, GroupType.CLASSIC, old);
    }

    private void onlineUp(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var old = world.member(group, topic, CLASSIC);
        GroupWorld.pollUntilSizes(List.of(4), old);
        var member = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(2, 2), old, member);
        Check.equal(GroupType.CONSUMER, ConsumerAdminChecks.describe(world, group).type(), "type with both protocols");
        world.close(old);
        GroupWorld.pollUntilSizes(List.of(4), member);
    }

    private void onlineDown(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(4), member);
        var old = world.member(group, topic, CLASSIC);
        GroupWorld.pollUntilSizes(List.of(2, 2), member, old);
        world.close(member);
        GroupWorld.pollUntilSizes(List.of(4), old);
        awaitType(world, group, GroupType.CLASSIC, old);
    }

    private void both(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        var old = world.member(group, topic, CLASSIC);
        GroupWorld.pollUntilSizes(List.of(2, 2), member, old);
        var found = ConsumerAdminChecks.describe(world, group).members();
        Set<Boolean> upgraded = new HashSet<>();
        found.forEach(m -> upgraded.add(m.upgraded().orElseThrow()));
        Check.equal(Set.of(true, false), upgraded, "which members have the consumer protocol");
    }

    /** Members are replaced one by one, up and down again, while a producer sends; each record reaches a member. */
    private void underLoad(GroupWorld world) throws Exception {
        String topic = world.cluster.topic(4);
        String group = world.cluster.freshName();
        Flow flow = new Flow(world.cluster, topic, 4);
        Set<String> read = new HashSet<>();
        var members = new java.util.ArrayDeque<KafkaConsumer<String, String>>();
        members.add(world.member(group, topic, CLASSIC));
        members.add(world.member(group, topic, CLASSIC));
        awaitHalves(members, read);
        for (String protocol : List.of("consumer", "consumer", "classic", "classic")) {
            world.close(members.remove());
            members.add(protocol.equals("classic") ? world.member(group, topic, CLASSIC) : world.member(group, topic));
            awaitHalves(members, read);
        }
        Set<String> wanted = new HashSet<>(Cluster.numbers(0, flow.stop()));
        Check.eventually("every record at some member", () -> {
            members.forEach(m -> m.poll(Cluster.POLL).forEach(r -> read.add(r.value())));
            return read.containsAll(wanted);
        });
        members.forEach(KafkaConsumer::commitSync);
        Check.equal(GroupType.CLASSIC, ConsumerAdminChecks.describe(world, group).type(), "type at the end");
    }

    private static void awaitHalves(java.util.Queue<KafkaConsumer<String, String>> members, Set<String> read)
            throws Exception {
        Check.eventually("two partitions for each member", () -> {
            members.forEach(m -> m.poll(Cluster.POLL).forEach(r -> read.add(r.value())));
            return members.stream().allMatch(m -> m.assignment().size() == 2);
        });
    }
}
