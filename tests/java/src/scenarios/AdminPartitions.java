package scenarios;

import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.CreatePartitionsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Partitions are added under a running producer and a running group; both take them up, and old records stay. */
final class AdminPartitions implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        Member member = cluster.member(cluster.freshName(), topic, "metadata.max.age.ms", "300",
                "heartbeat.interval.ms", "200", "session.timeout.ms", "6000");
        member.awaitAssignment(0, 1);
        try (KafkaProducer<String, String> producer = cluster.producer("metadata.max.age.ms", "300")) {
            int[] sent = {0};
            Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", "" + sent[0]++));
            grow(cluster, topic, 5);
            member.awaitAssignment(0, 1, 2, 3, 4);
            Check.eventually("the producer knows 5", () -> {
                Cluster.send(producer, new ProducerRecord<>(topic, 1, "k", "" + sent[0]++));
                return producer.partitionsFor(topic).size() == 5;
            });
            for (int partition = 0; partition < 5; partition++) {
                Cluster.send(producer, new ProducerRecord<>(topic, partition, "k", "" + sent[0]++));
            }
            List<String> wanted = Cluster.numbers(0, sent[0]);
            member.await("all records", () -> member.values().containsAll(wanted));
        }
        Check.equal(5, cluster.readAll(topic).size(), "partitions");
        refusals(cluster, topic);
        member.leave();
    }

    private static void grow(Cluster cluster, String topic, int count) throws Exception {
        var wanted = Map.of(topic, NewPartitions.increaseTo(count));
        Cluster.get(cluster.admin.createPartitions(wanted, new CreatePartitionsOptions().validateOnly(true)).all());
        int before = Cluster.get(cluster.admin.describeTopics(List.of(topic)).allTopicNames())
                .get(topic).partitions().size();
        Check.equal(2, before, "partitions after validateOnly");
        Cluster.get(cluster.admin.createPartitions(wanted).all());
        cluster.waitForLeaders(topic, count);
    }

    private static void refusals(Cluster cluster, String topic) {
        for (int count : List.of(5, 4)) {
            refuse(cluster, InvalidPartitionsException.class, topic, NewPartitions.increaseTo(count));
        }
        refuse(cluster, InvalidReplicaAssignmentException.class, topic,
                NewPartitions.increaseTo(6, List.of(List.of(987))));
        refuse(cluster, UnknownTopicOrPartitionException.class, cluster.freshName(), NewPartitions.increaseTo(2));
    }

    private static void refuse(Cluster cluster, Class<? extends Exception> how, String topic, NewPartitions wanted) {
        Check.refused(how, "growing " + topic + " to " + wanted.totalCount(),
                () -> Cluster.get(cluster.admin.createPartitions(Map.of(topic, wanted)).all()));
    }
}
