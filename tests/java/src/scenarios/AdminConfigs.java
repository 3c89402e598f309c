package scenarios;

import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigType;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Settings of topics and brokers: described with source, type, synonyms and documentation, and altered one by one. */
final class AdminConfigs implements Scenario {
    private Cluster cluster;

    @Override
    public void run(Cluster given) throws Exception {
        cluster = given;
        String name = cluster.topic(1, "retention.ms", "50000");
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        described(topic);
        altered(topic);
        refusals(topic);
        brokers();
    }

    private Config describe(ConfigResource resource) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return Cluster.get(cluster.admin.describeConfigs(List.of(resource), options).all()).get(resource);
    }

    private void alter(ConfigResource resource, OpType how, String name, String value) throws Exception {
        alter(resource, List.of(new AlterConfigOp(new ConfigEntry(name, value), how)), false);
    }

    private void alter(ConfigResource resource, Collection<AlterConfigOp> how, boolean dry) throws Exception {
        var options = new AlterConfigsOptions().validateOnly(dry);
        Cluster.get(cluster.admin.incrementalAlterConfigs(Map.of(resource, how), options).all());
    }

    private void described(ConfigResource topic) throws Exception {
        Config config = describe(topic);
        ConfigEntry set = config.get("retention.ms");
        Check.equal("50000", set.value(), "a setting that was given");
        Check.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, set.source(), "its source");
        Check.equal(ConfigType.LONG, set.type(), "its type");
        Check.that(!set.isDefault() && !set.isReadOnly() && !set.isSensitive(), "its flags: " + set);
        Check.that(set.documentation() != null && !set.documentation().isEmpty(), "it is not documented");
        Check.equal("retention.ms", set.synonyms().get(0).name(), "its first synonym");
        for (String name : List.of("cleanup.policy", "max.message.bytes", "segment.bytes", "compression.type",
                "min.insync.replicas", "flush.messages", "message.timestamp.type")) {
            ConfigEntry entry = config.get(name);
            Check.that(entry != null && entry.value() != null, name + " is not described");
            Check.that(entry.source() != ConfigSource.DYNAMIC_TOPIC_CONFIG, name + " was set by nobody: " + entry);
        }
        Check.equal(ConfigType.LIST, config.get("cleanup.policy").type(), "type of a list");
    }

    private void altered(ConfigResource topic) throws Exception {
        alter(topic, OpType.SET, "max.message.bytes", "7777");
        awaitValue(topic, "max.message.bytes", "7777");
        awaitValue(topic, "retention.ms", "50000");
        alter(topic, OpType.APPEND, "cleanup.policy", "compact");
        awaitValue(topic, "cleanup.policy", "delete,compact");
        alter(topic, OpType.SUBTRACT, "cleanup.policy", "delete");
        awaitValue(topic, "cleanup.policy", "compact");
        alter(topic, OpType.DELETE, "retention.ms", null);
        Check.eventually("the default again",
                () -> describe(topic).get("retention.ms").source() != ConfigSource.DYNAMIC_TOPIC_CONFIG);
        alter(topic, List.of(new AlterConfigOp(new ConfigEntry("max.message.bytes", "8888"), OpType.SET)), true);
        Check.equal("7777", describe(topic).get("max.message.bytes").value(), "value after validateOnly");
    }

    private void awaitValue(ConfigResource resource, String name, String wanted) throws Exception {
        Check.eventually(name + "=" + wanted, () -> wanted.equals(describe(resource).get(name).value()));
    }

    private void refusals(ConfigResource topic) throws Exception {
        refuse(InvalidConfigurationException.class, topic, OpType.SET, "max.message.bytes", "-5");
        refuse(InvalidConfigurationException.class, topic, OpType.SET, "max.message.bytes", "many");
        refuse(InvalidConfigurationException.class, topic, OpType.SET, "cleanup.policy", "burn");
        refuse(InvalidConfigurationException.class, topic, OpType.SET, "no.such.setting", "1");
        refuse(InvalidConfigurationException.class, topic, OpType.APPEND, "max.message.bytes", "1");
        var twice = new AlterConfigOp(new ConfigEntry("retention.ms", "1"), OpType.SET);
        var again = new AlterConfigOp(new ConfigEntry("retention.ms", "2"), OpType.SET);
        Check.refused(InvalidRequestException.class, "one setting twice", () -> {
            alter(topic, List.of(twice, again), false);
            return "altered";
        });
        var nowhere = new ConfigResource(ConfigResource.Type.TOPIC, cluster.freshName());
        refuse(UnknownTopicOrPartitionException.class, nowhere, OpType.SET, "retention.ms", "1");
        Check.refused(UnknownTopicOrPartitionException.class, "describing nothing", () -> describe(nowhere));
    }

    private void refuse(Class<? extends Exception> how, ConfigResource resource, OpType op, String name, String value) {
        Check.refused(how, op + " " + name + "=" + value, () -> {
            alter(resource, op, name, value);
            return "altered";
        });
    }

    private void brokers() throws Exception {
        String id = Cluster.get(cluster.admin.describeCluster().nodes()).iterator().next().idString();
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, id);
        Config config = describe(broker);
        for (String name : List.of("num.partitions", "log.retention.ms", "group.min.session.timeout.ms",
                "log.segment.bytes", "message.max.bytes", "auto.create.topics.enable")) {
            Check.that(config.get(name) != null, name + " is not described");
        }
        alter(broker, OpType.SET, "log.retention.ms", "87654321");
        Check.eventually("a setting of one broker",
                () -> "87654321".equals(describe(broker).get("log.retention.ms").value())
                        && describe(broker).get("log.retention.ms").source() == ConfigSource.DYNAMIC_BROKER_CONFIG);
        alter(broker, OpType.DELETE, "log.retention.ms", null);
        Check.eventually("its default again",
                () -> describe(broker).get("log.retention.ms").source() != ConfigSource.DYNAMIC_BROKER_CONFIG);
    }
}
