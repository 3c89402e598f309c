package scenarios;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.NoReassignmentInProgressException;

/** Three brokers: a partition moves, grows and shrinks under a running producer, and loses nothing. */
final class Reassignment implements Scenario {
    private Cluster cluster;

    @Override
    public List<String> expectedWarnings() {
        return List.of("NOT_LEADER_OR_FOLLOWER", "NotLeaderOrFollowerException"); // the producer follows the leader
    }
    private TopicPartition partition;

    @Override
    public void run(Cluster given) throws Exception {
        cluster = given;
        List<Integer> ids = Cluster.get(cluster.admin.describeCluster().nodes()).stream()
                .map(Node::id).sorted().collect(Collectors.toList());
        Check.that(ids.size() >= 3, "this needs three brokers, there are " + ids);
        int a = ids.get(0);
        int b = ids.get(1);
        int c = ids.get(2);
        String topic = cluster.topicName();
        partition = new TopicPartition(topic, 0);
        cluster.create(new NewTopic(topic, Map.of(0, List.of(a))));
        cluster.fill(topic, 0, 0, 1000);
        List<String> wanted = new ArrayList<>(Cluster.numbers(0, 1000));
        try (KafkaProducer<String, String> producer = cluster.producer()) {
            for (List<Integer> replicas : List.of(List.of(b), List.of(b, c, a), List.of(c, a), List.of(a, b, c))) {
                move(replicas);
                for (int i = 0; i < 50; i++) {
                    wanted.add("" + wanted.size());
                    Cluster.send(producer, new ProducerRecord<>(topic, 0, "k", wanted.get(wanted.size() - 1)));
                }
            }
        }
        Check.equal(wanted, Cluster.values(cluster.readAll(topic).get(0)), "records after all moves");
        preferred(a);
        refusals();
    }

    private TopicPartitionInfo describe() throws Exception {
        return Cluster.get(cluster.admin.describeTopics(List.of(partition.topic())).allTopicNames())
                .get(partition.topic()).partitions().get(0);
    }

    private static List<Integer> ids(List<Node> nodes) {
        return nodes.stream().map(Node::id).collect(Collectors.toList());
    }

    private void alter(Optional<NewPartitionReassignment> how) throws Exception {
        Cluster.get(cluster.admin.alterPartitionReassignments(Map.of(partition, how)).all());
    }

    private void move(List<Integer> replicas) throws Exception {
        alter(Optional.of(new NewPartitionReassignment(replicas)));
        Check.eventually("replicas " + replicas, () ->
                ids(describe().replicas()).equals(replicas)
                        && new HashSet<>(ids(describe().isr())).equals(new HashSet<>(replicas))
                        && describe().leader() != null && replicas.contains(describe().leader().id()));
        Check.eventually("no reassignment under way", () -> Cluster.get(
                cluster.admin.listPartitionReassignments(Set.of(partition)).reassignments()).isEmpty());
    }

    private void preferred(int leader) throws Exception {
        Cluster.get(cluster.admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions());
        Check.eventually("the preferred leader", () -> describe().leader().id() == leader);
    }

    private void refusals() throws Exception {
        Check.refused(NoReassignmentInProgressException.class, "cancelling what is not under way", () -> {
            alter(Optional.empty());
            return "cancelled";
        });
        Check.refused(InvalidReplicaAssignmentException.class, "a broker that is not there", () -> {
            alter(Optional.of(new NewPartitionReassignment(List.of(987))));
            return "altered";
        });
        Cluster.get(cluster.admin.listPartitionReassignments().reassignments());
    }
}
