package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The cluster, its brokers' directories, its features, and elections of preferred leaders. */
final class AdminCluster implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String topic = cluster.topic(2);
        cluster.fill(topic, 0, 0, 100);
        described(cluster);
        directories(cluster, topic);
        elections(cluster, topic);
        Cluster.get(cluster.admin.describeFeatures().featureMetadata());
        Check.that(!Cluster.get(cluster.admin.describeMetadataQuorum().quorumInfo()).voters().isEmpty(), "no voters");
    }

    private static void described(Cluster cluster) throws Exception {
        var result = cluster.admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
        Check.that(Cluster.get(result.clusterId()).length() > 0, "no cluster id");
        var nodes = Cluster.get(result.nodes());
        Check.that(nodes.contains(Cluster.get(result.controller())), "the controller is not among " + nodes);
        for (Node node : nodes) {
            Check.that(node.port() > 0 && !node.host().isEmpty(), "where is " + node);
        }
        Cluster.get(result.authorizedOperations());
    }

    private static void directories(Cluster cluster, String topic) throws Exception {
        Set<Integer> ids = Cluster.get(cluster.admin.describeCluster().nodes()).stream()
                .map(Node::id).collect(Collectors.toSet());
        long size = 0;
        var brokers = Cluster.get(cluster.admin.describeLogDirs(ids).allDescriptions());
        Check.equal(ids, brokers.keySet(), "brokers that answered");
        for (Map<String, LogDirDescription> directories : brokers.values()) {
            for (LogDirDescription directory : directories.values()) {
                Check.that(directory.error() == null, "a directory has failed: " + directory);
                Check.that(directory.totalBytes().orElse(-1) > 0, "a directory without a size");
                for (var replica : directory.replicaInfos().entrySet()) {
                    size += replica.getKey().equals(new TopicPartition(topic, 0)) ? replica.getValue().size() : 0;
                }
            }
        }
        Check.that(size > 100, "bytes of a filled partition: " + size);
    }

    private static void elections(Cluster cluster, String topic) throws Exception {
        TopicPartition there = new TopicPartition(topic, 0);
        TopicPartition nowhere = new TopicPartition(cluster.freshName(), 0);
        var result = Cluster.get(
                cluster.admin.electLeaders(ElectionType.PREFERRED, Set.of(there, nowhere)).partitions());
        var refusal = result.get(there).orElse(null);
        Check.that(refusal == null || refusal instanceof ElectionNotNeededException, "election: " + refusal);
        Check.that(result.get(nowhere).orElse(null) instanceof UnknownTopicOrPartitionException, "election of nothing");
        Cluster.get(cluster.admin.electLeaders(ElectionType.PREFERRED, null).partitions());
        Check.equal(List.of("0"), Cluster.values(cluster.readAll(topic).get(0)).subList(0, 1), "still readable");
    }
}
