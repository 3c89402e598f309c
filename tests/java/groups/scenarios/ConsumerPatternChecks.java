package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidRegularExpression;

/** Subscriptions by a regular expression that the broker evaluates, in the syntax of RE2. */
final class ConsumerPatternChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("pattern-new-topic", this::newTopic);
        checks.put("pattern-prefix", world -> matches(world, "NAME-(orders|payments).*", "orders", "payments2"));
        checks.put("pattern-matches-whole-names", world -> matches(world, "NAME-orders", "orders"));
        checks.put("pattern-classes", world -> matches(world, "NAME-[a-z]+\\d", "payments2"));
        checks.put("pattern-ignoring-case", world -> matches(world, "(?i)NAME-ORDERS", "orders"));
        checks.put("pattern-unicode-class", world -> matches(world, "NAME-\\p{L}+", "orders"));
        checks.put("pattern-named-group", world -> matches(world, "NAME-(?P<what>orders)", "orders"));
        checks.put("pattern-unbalanced", world -> invalid(world, "(orders"));
        checks.put("pattern-lookahead", world -> invalid(world, "(?=orders).*"));
        checks.put("pattern-backreference", world -> invalid(world, "(o)\\1"));
        checks.put("pattern-changes", this::changes);
        checks.put("pattern-then-names", this::thenNames);
        checks.put("pattern-without-match", this::withoutMatch);
        checks.put("pattern-two-members", this::twoMembers);
        checks.put("pattern-evaluated-by-client", this::byClient);
    }

    /** Topics whose names begin with the returned name. */
    private static String topics(GroupWorld world, String... endings) throws Exception {
        String name = world.cluster.freshName();
        for (String ending : endings) {
            create(world, name + "-" + ending);
        }
        return name;
    }

    private static void create(GroupWorld world, String topic) throws Exception {
        world.cluster.created(topic);
        world.cluster.create(new NewTopic(topic, 1, (short) -1));
    }

    private static Set<String> assigned(KafkaConsumer<String, String> member) {
        return member.assignment().stream().map(TopicPartition::topic).collect(Collectors.toSet());
    }

    private static void matches(GroupWorld world, String pattern, String... endings) throws Exception {
        String name = topics(world, "orders", "payments2");
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(new SubscriptionPattern(pattern.replace("NAME", name)));
        Set<String> wanted = java.util.Arrays.stream(endings).map(e -> name + "-" + e).collect(Collectors.toSet());
        GroupWorld.pollUntil("topics " + wanted, () -> assigned(member).equals(wanted), member);
    }

    private static void invalid(GroupWorld world, String pattern) throws Exception {
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(new SubscriptionPattern(pattern));
        Check.refusedAtLast(InvalidRegularExpression.class, "the pattern " + pattern, () -> member.poll(Cluster.POLL));
    }

    private void newTopic(GroupWorld world) throws Exception {
        String name = topics(world, "one");
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(new SubscriptionPattern(name + ".*"));
        GroupWorld.pollUntil("the first topic", () -> assigned(member).size() == 1, member);
        create(world, name + "-two");
        GroupWorld.pollUntil("a topic that was created later", () -> assigned(member).size() == 2, member);
    }

    private void changes(GroupWorld world) throws Exception {
        String name = topics(world, "one", "two");
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(new SubscriptionPattern(name + "-one"));
        GroupWorld.pollUntil("the first topic", () -> assigned(member).equals(Set.of(name + "-one")), member);
        member.subscribe(new SubscriptionPattern(name + "-two"));
        GroupWorld.pollUntil("the second topic", () -> assigned(member).equals(Set.of(name + "-two")), member);
    }

    private void thenNames(GroupWorld world) throws Exception {
        String name = topics(world, "one", "two");
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(new SubscriptionPattern(name + ".*"));
        GroupWorld.pollUntil("both topics", () -> assigned(member).size() == 2, member);
        member.unsubscribe();
        member.subscribe(List.of(name + "-two"));
        GroupWorld.pollUntil("one topic", () -> assigned(member).equals(Set.of(name + "-two")), member);
    }

    private void withoutMatch(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        var member = world.consumer(group);
        member.subscribe(new SubscriptionPattern(world.cluster.freshName()));
        GroupWorld.pollUntil("the group to be stable", () -> ConsumerAdminChecks.isStable(world, group), member);
        Check.equal(Set.of(), member.assignment(), "assignment");
    }

    private void twoMembers(GroupWorld world) throws Exception {
        String name = topics(world, "one", "two");
        String group = world.cluster.freshName();
        var first = world.consumer(group);
        var second = world.consumer(group);
        first.subscribe(new SubscriptionPattern(name + ".*"));
        second.subscribe(new SubscriptionPattern(name + "-.*"));
        GroupWorld.pollUntilSizes(List.of(1, 1), first, second);
    }

    /** java.util.regex, as before: the client evaluates the pattern and sends names. */
    private void byClient(GroupWorld world) throws Exception {
        String name = topics(world, "one", "two");
        var member = world.consumer(world.cluster.freshName());
        member.subscribe(java.util.regex.Pattern.compile("(?=" + name + ").*"));
        GroupWorld.pollUntil("both topics", () -> assigned(member).size() == 2, member);
    }
}
