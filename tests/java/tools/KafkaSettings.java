import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints each setting that this release of Apache Kafka defines, its type, and the type that a cluster describes. */
public final class KafkaSettings {
    private final Admin admin;

    private KafkaSettings(Admin admin) {
        this.admin = admin;
    }

    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]))) {
            KafkaSettings settings = new KafkaSettings(admin);
            settings.print(ConfigResource.Type.BROKER, arguments[1], AbstractKafkaConfig.CONFIG_DEF);
            settings.print(ConfigResource.Type.TOPIC, arguments[2], LogConfig.configDefCopy());
            settings.print(ConfigResource.Type.GROUP, "any", GroupConfig.CONFIG_DEF);
            settings.print(ConfigResource.Type.CLIENT_METRICS, "any", ClientMetricsConfigs.configDef());
        }
    }

    private void print(ConfigResource.Type type, String name, ConfigDef definition) throws Exception {
        ConfigResource resource = new ConfigResource(type, name);
        Config described = admin.describeConfigs(java.util.List.of(resource)).all().get().get(resource);
        for (Map.Entry<String, ConfigDef.ConfigKey> each : new TreeMap<>(definition.configKeys()).entrySet()) {
            if (!each.getValue().internalConfig) {
                ConfigEntry entry = described.get(each.getKey());
                String found = entry == null ? "MISSING" : entry.type().toString();
                System.out.printf("%s %s %s %s%n", type, each.getKey(), each.getValue().type, found);
            }
        }
    }
}
