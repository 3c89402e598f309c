package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.errors.InconsistentGroupProtocolException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.WakeupException;

/** What a share consumer refuses, wakeup, and groups of another type. */
final class ShareMisuseChecks implements GroupCheck.Group {
    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("misuse-acknowledge-in-implicit-mode", this::acknowledgeInImplicitMode);
        checks.put("misuse-poll-without-subscription", this::pollWithoutSubscription);
        checks.put("misuse-use-after-close", this::useAfterClose);
        checks.put("misuse-empty-subscription", this::emptySubscription);
        checks.put("misuse-null-topic", this::nullTopic);
        checks.put("misuse-invalid-topic", this::invalidTopic);
        checks.put("misuse-empty-group-id", this::emptyGroupId);
        checks.put("misuse-two-threads", this::twoThreads);
        for (String setting : List.of("auto.offset.reset", "enable.auto.commit", "group.instance.id", "isolation.level",
                "partition.assignment.strategy", "interceptor.classes", "session.timeout.ms", "heartbeat.interval.ms",
                "group.protocol", "group.remote.assignor")) {
            checks.put("misuse-setting-" + setting.replace('.', '-'), world -> unsupported(world, setting));
        }
        checks.put("misuse-acknowledgement-mode", world -> Check.refused(ConfigException.class, "a mode that is none",
                () -> world.unsubscribed("g", "share.acknowledgement.mode", "sometimes")));
        checks.put("misuse-acquire-mode", world -> Check.refused(KafkaException.class, "a mode that is none",
                () -> world.unsubscribed("g", "share.acquire.mode", "greedy")));
        checks.put("wakeup-during-poll", this::wakeupDuringPoll);
        checks.put("wakeup-before-poll", this::wakeupBeforePoll);
        checks.put("wakeup-loses-nothing", this::wakeupLosesNothing);
        checks.put("type-consumer-in-a-share-group", world -> otherType(world, "consumer"));
        checks.put("type-classic-in-a-share-group", world -> otherType(world, "classic"));
        checks.put("type-share-in-a-consumer-group", this::shareInConsumerGroup);
    }

    private void acknowledgeInImplicitMode(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.filled(1));
        var record = GroupWorld.next(consumer).get(0);
        Check.refused(IllegalStateException.class, "an acknowledgement in implicit mode", () -> {
            consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            return null;
        });
    }

    private void pollWithoutSubscription(GroupWorld world) {
        var consumer = world.unsubscribed(world.cluster.freshName());
        Check.refused(IllegalStateException.class, "a poll without topics", () -> consumer.poll(Cluster.POLL));
    }

    private void useAfterClose(GroupWorld world) throws Exception {
        var consumer = world.unsubscribed(world.cluster.freshName());
        world.close(consumer);
        consumer.close();
        Check.refused(IllegalStateException.class, "a poll after the end", () -> consumer.poll(Cluster.POLL));
        Check.refused(IllegalStateException.class, "a commit after the end", consumer::commitSync);
    }

    private void emptySubscription(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.cluster.topic(1));
        consumer.subscribe(List.of());
        Check.equal(Set.of(), consumer.subscription(), "subscription");
        Check.refused(IllegalStateException.class, "a poll without topics", () -> consumer.poll(Cluster.POLL));
    }

    private void nullTopic(GroupWorld world) {
        var consumer = world.unsubscribed(world.cluster.freshName());
        Check.refused(IllegalArgumentException.class, "no topics at all", () -> {
            consumer.subscribe(null);
            return null;
        });
        Check.refused(IllegalArgumentException.class, "a topic without a name", () -> {
            consumer.subscribe(List.of(" "));
            return null;
        });
    }

    private void invalidTopic(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), "not a topic!");
        Check.refusedAtLast(InvalidTopicException.class, "a name that no topic can have", () -> consumer.poll(Cluster.POLL));
    }

    private void emptyGroupId(GroupWorld world) {
        Check.refused(KafkaException.class, "an empty group", () -> world.unsubscribed(""));
        Check.refused(KafkaException.class, "no group", () -> new org.apache.kafka.clients.consumer.KafkaShareConsumer<>(
                world.settings(), new org.apache.kafka.common.serialization.StringDeserializer(),
                new org.apache.kafka.common.serialization.StringDeserializer()));
    }

    private void twoThreads(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.cluster.topic(1));
        CountDownLatch end = new CountDownLatch(1);
        Thread poller = new Thread(() -> {
            while (end.getCount() > 0) {
                consumer.poll(Cluster.POLL);
            }
        });
        poller.start();
        try {
            Check.refusedAtLast(java.util.ConcurrentModificationException.class, "use by a second thread",
                    consumer::subscription);
        } finally {
            end.countDown();
            poller.join();
        }
    }

    private void unsupported(GroupWorld world, String setting) {
        Check.refused(ConfigException.class, "the setting " + setting,
                () -> world.unsubscribed(world.cluster.freshName(), setting, valueFor(setting)));
    }

    private static String valueFor(String setting) {
        return setting.endsWith(".ms") ? "5000" : setting.equals("enable.auto.commit") ? "true" : "earliest";
    }

    private void wakeupDuringPoll(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.cluster.topic(1));
        Thread waker = new Thread(() -> {
            try {
                Thread.sleep(300);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            consumer.wakeup();
        });
        waker.start();
        Check.refused(WakeupException.class, "a poll that is woken",
                () -> consumer.poll(java.time.Duration.ofMillis(Check.LIMIT_MS)));
        waker.join();
    }

    private void wakeupBeforePoll(GroupWorld world) throws Exception {
        var consumer = world.share(world.shareGroup(), world.cluster.topic(1));
        consumer.wakeup();
        Check.refused(WakeupException.class, "the poll after a wakeup",
                () -> consumer.poll(java.time.Duration.ofMillis(Check.LIMIT_MS)));
        Check.equal(0, consumer.poll(Cluster.POLL).count(), "records of the poll after that");
    }

    private void wakeupLosesNothing(GroupWorld world) throws Exception {
        String topic = world.filled(5);
        var consumer = world.share(world.shareGroup(), topic);
        consumer.wakeup();
        Check.refused(WakeupException.class, "the poll after a wakeup", () -> consumer.poll(Cluster.POLL));
        var found = GroupWorld.take(consumer, 5);
        Check.equal(Set.of(1), GroupWorld.counts(found), "delivery counts");
    }

    private void otherType(GroupWorld world, String protocol) throws Exception {
        String topic = world.filled(1);
        String group = world.shareGroup();
        GroupWorld.take(world.share(group, topic), 1);
        var consumer = world.member(group, topic, "group.protocol", protocol);
        var refusal = Check.refusedAtLast(
                KafkaException.class, "a consumer in a share group", () -> consumer.poll(Cluster.POLL));
        Check.equal(InconsistentGroupProtocolException.class, refusal.getClass(), "type of the refusal");
    }

    private void shareInConsumerGroup(GroupWorld world) throws Exception {
        String topic = world.filled(1);
        String group = world.cluster.freshName();
        var member = world.member(group, topic);
        GroupWorld.pollUntilSizes(List.of(1), member);
        var consumer = world.share(group, topic);
        Check.refusedAtLast(KafkaException.class, "a share consumer in a consumer group",
                () -> consumer.poll(Cluster.POLL));
    }
}
