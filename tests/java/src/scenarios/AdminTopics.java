package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Topics by name and by id: create, describe, list, delete, and each refusal by its name. */
final class AdminTopics implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        created(cluster);
        assigned(cluster);
        refusals(cluster);
        deleted(cluster);
    }

    private static void created(Cluster cluster) throws Exception {
        String name = cluster.topicName();
        CreateTopicsResult dry = cluster.admin.createTopics(
                List.of(new NewTopic(name, 3, (short) 1)), new CreateTopicsOptions().validateOnly(true));
        Cluster.get(dry.all());
        Check.that(!Cluster.get(cluster.admin.listTopics().names()).contains(name), "validateOnly created the topic");
        CreateTopicsResult result = cluster.admin.createTopics(
                List.of(new NewTopic(name, 3, (short) 1).configs(Map.of("retention.ms", "12345"))));
        Cluster.get(result.all());
        Check.equal(3, Cluster.get(result.numPartitions(name)), "partitions told at creation");
        Check.equal(1, Cluster.get(result.replicationFactor(name)), "replication factor told at creation");
        Check.equal("12345", Cluster.get(result.config(name)).get("retention.ms").value(), "config told at creation");
        Uuid id = Cluster.get(result.topicId(name));
        cluster.waitForLeaders(name, 3);

        TopicDescription byName = Cluster.get(cluster.admin.describeTopics(List.of(name)).allTopicNames()).get(name);
        TopicDescription byId = Cluster.get(
                cluster.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id);
        Check.equal(byName.name(), byId.name(), "name of the topic with this id");
        Check.equal(id, byName.topicId(), "topic id");
        Check.equal(3, byId.partitions().size(), "partitions of the topic with this id");
        Check.equal(List.of(0, 1, 2), byName.partitions().stream().map(p -> p.partition()).toList(), "partitions");
        Check.that(!byName.isInternal(), "a user's topic counts as internal");
        byName.partitions().forEach(p -> Check.equal(p.replicas(), p.isr(), "in-sync replicas"));
        Check.equal(id, Cluster.get(cluster.admin.listTopics().namesToListings()).get(name).topicId(), "listed id");
        Cluster.get(cluster.admin.listTopics(new ListTopicsOptions().listInternal(true)).names());
    }

    private static void assigned(Cluster cluster) throws Exception {
        int broker = Cluster.get(cluster.admin.describeCluster().nodes()).iterator().next().id();
        String explicit = cluster.topicName();
        cluster.create(new NewTopic(explicit, Map.of(0, List.of(broker), 1, List.of(broker))));
        String byDefault = cluster.topicName();
        var result = cluster.admin.createTopics(List.of(new NewTopic(byDefault, Optional.empty(), Optional.empty())));
        int partitions = Cluster.get(result.numPartitions(byDefault));
        Check.that(partitions >= 1, "default partitions " + partitions);
        cluster.waitForLeaders(byDefault, partitions);
    }

    private static void refusals(Cluster cluster) throws Exception {
        String there = cluster.topic(1);
        refuse(cluster, TopicExistsException.class, new NewTopic(there, 1, (short) 1));
        refuse(cluster, InvalidTopicException.class, new NewTopic("no spaces please", 1, (short) 1));
        refuse(cluster, InvalidTopicException.class, new NewTopic("x".repeat(250), 1, (short) 1));
        refuse(cluster, InvalidTopicException.class, new NewTopic("..", 1, (short) 1));
        refuse(cluster, InvalidPartitionsException.class, new NewTopic(cluster.freshName(), 0, (short) 1));
        refuse(cluster, InvalidReplicationFactorException.class, new NewTopic(cluster.freshName(), 1, (short) 99));
        refuse(cluster, InvalidConfigurationException.class,
                new NewTopic(cluster.freshName(), 1, (short) 1).configs(Map.of("retention.ms", "soon")));
        refuse(cluster, InvalidConfigurationException.class,
                new NewTopic(cluster.freshName(), 1, (short) 1).configs(Map.of("no.such.setting", "1")));
    }

    private static void refuse(Cluster cluster, Class<? extends Exception> how, NewTopic topic) {
        Check.refused(how, "creating " + topic, () -> Cluster.get(cluster.admin.createTopics(List.of(topic)).all()));
    }

    private static void deleted(Cluster cluster) throws Exception {
        String byName = cluster.topic(1);
        String byId = cluster.topic(1);
        Uuid id = Cluster.get(cluster.admin.describeTopics(List.of(byId)).allTopicNames()).get(byId).topicId();
        Cluster.get(cluster.admin.deleteTopics(List.of(byName)).all());
        Cluster.get(cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        Check.eventually("both gone", () -> {
            Set<String> names = Cluster.get(cluster.admin.listTopics().names());
            return !names.contains(byName) && !names.contains(byId);
        });
        Check.refusedAtLast(UnknownTopicOrPartitionException.class, "describing a deleted topic",
                () -> Cluster.get(cluster.admin.describeTopics(List.of(byName)).allTopicNames()));
        Check.refusedAtLast(UnknownTopicIdException.class, "describing a deleted topic's id",
                () -> Cluster.get(cluster.admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()));
        Check.refused(UnknownTopicOrPartitionException.class, "deleting a deleted topic",
                () -> Cluster.get(cluster.admin.deleteTopics(List.of(byName)).all()));
        Check.refused(UnknownTopicIdException.class, "deleting a deleted topic's id",
                () -> Cluster.get(cluster.admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all()));
    }
}
