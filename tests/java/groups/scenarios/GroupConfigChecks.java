package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListConfigResourcesOptions;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidRequestException;

/** Settings of groups: incrementalAlterConfigs and describeConfigs for resources of type GROUP. */
final class GroupConfigChecks implements GroupCheck.Group {
    private static final Map<String, String> DEFAULTS = GroupWorld.map(
            "share.auto.offset.reset", "latest", "share.isolation.level", "read_uncommitted",
            "share.record.lock.duration.ms", "60000", "share.session.timeout.ms", "45000",
            "share.delivery.count.limit", "5",
            "share.partition.max.record.locks", "2000", "share.renew.acknowledge.enable", "true",
            "consumer.session.timeout.ms", "45000");

    @Override
    public void addTo(Map<String, GroupCheck> checks) {
        checks.put("config-defaults", this::defaults);
        checks.put("config-set-and-delete", this::setAndDelete);
        checks.put("config-several-at-once", this::several);
        checks.put("config-of-group-without-members", this::withoutMembers);
        checks.put("config-validate-only", this::validateOnly);
        checks.put("config-chosen-names", this::chosenNames);
        checks.put("config-list-resources", this::listResources);
        checks.put("config-append-refused", this::append);
        String[] invalid = {
            "share.auto.offset.reset", "soonest", "share.auto.offset.reset", "by_duration:soon",
            "share.auto.offset.reset", "by_duration:-PT1H", "share.isolation.level", "serializable",
            "share.record.lock.duration.ms", "500", "share.record.lock.duration.ms", "60001",
            "share.delivery.count.limit", "1", "share.delivery.count.limit", "11",
            "share.partition.max.record.locks", "99", "share.partition.max.record.locks", "4001",
            "share.session.timeout.ms", "60001", "share.heartbeat.interval.ms", "15001",
            "share.renew.acknowledge.enable", "perhaps", "consumer.session.timeout.ms", "60001",
            "consumer.heartbeat.interval.ms", "15001", "consumer.session.timeout.ms", "soon",
            "no.such.setting", "1",
        };
        for (int i = 0; i < invalid.length; i += 2) {
            String name = invalid[i];
            String value = invalid[i + 1];
            String check = "config-invalid-" + (name + "-" + value).replaceAll("[^a-zA-Z0-9]+", "-").toLowerCase();
            checks.put(check, world -> invalid(world, name, value));
        }
    }

    private static Map<String, ConfigEntry> describe(GroupWorld world, String group) throws Exception {
        ConfigResource resource = GroupWorld.resource(group);
        return Cluster.get(world.admin.describeConfigs(List.of(resource)).all()).get(resource).entries().stream()
                .collect(Collectors.toMap(ConfigEntry::name, e -> e));
    }

    private static void awaitValue(GroupWorld world, String group, String name, String value) throws Exception {
        Check.eventually(name + " of " + value, () -> value.equals(describe(world, group).get(name).value()));
    }

    private void defaults(GroupWorld world) throws Exception {
        var found = describe(world, world.cluster.freshName());
        DEFAULTS.forEach((name, value) -> {
            Check.that(found.containsKey(name), "no setting " + name + ", got " + found.keySet());
            Check.equal(value, found.get(name).value(), name);
            Check.that(!found.get(name).isReadOnly() && !found.get(name).isSensitive(), name + " can be changed");
            Check.that(found.get(name).source() != ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG, "source of " + name);
        });
    }

    private void setAndDelete(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        world.configure(group, "share.delivery.count.limit", "7");
        awaitValue(world, group, "share.delivery.count.limit", "7");
        Check.equal(ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG,
                describe(world, group).get("share.delivery.count.limit").source(), "source");
        world.configure(group, "share.delivery.count.limit", null);
        awaitValue(world, group, "share.delivery.count.limit", "5");
    }

    private void several(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        world.configure(group, "share.isolation.level", "read_committed", "consumer.session.timeout.ms", "50000");
        awaitValue(world, group, "share.isolation.level", "read_committed");
        awaitValue(world, group, "consumer.session.timeout.ms", "50000");
    }

    private void withoutMembers(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        world.configure(group, "share.isolation.level", "read_committed");
        awaitValue(world, group, "share.isolation.level", "read_committed");
        Check.refused(org.apache.kafka.common.errors.GroupIdNotFoundException.class, "a group that has only settings",
                () -> Cluster.get(world.admin.describeShareGroups(List.of(group)).all()));
    }

    private void validateOnly(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        var change = new AlterConfigOp(new ConfigEntry("share.delivery.count.limit", "7"), AlterConfigOp.OpType.SET);
        Cluster.get(world.admin.incrementalAlterConfigs(Map.of(GroupWorld.resource(group), List.of(change)),
                new AlterConfigsOptions().validateOnly(true)).all());
        Check.equal("5", describe(world, group).get("share.delivery.count.limit").value(), "value");
    }

    private void chosenNames(GroupWorld world) throws Exception {
        var found = describe(world, world.cluster.freshName());
        var share = found.keySet().stream().filter(n -> n.startsWith("share.")).collect(Collectors.toSet());
        Check.that(share.size() >= 8, "share settings: " + share);
    }

    private void listResources(GroupWorld world) throws Exception {
        String group = world.cluster.freshName();
        world.configure(group, "share.isolation.level", "read_committed");
        Check.eventually("the group among the resources", () -> Cluster.get(world.admin.listConfigResources(
                Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions()).all())
                .contains(GroupWorld.resource(group)));
    }

    private void append(GroupWorld world) throws Exception {
        var change = new AlterConfigOp(new ConfigEntry("share.isolation.level", "x"), AlterConfigOp.OpType.APPEND);
        Check.refused(org.apache.kafka.common.errors.ApiException.class, "appending to a setting that is no list",
                () -> Cluster.get(world.admin.incrementalAlterConfigs(
                        Map.of(GroupWorld.resource(world.cluster.freshName()), List.of(change))).all()));
    }

    private void invalid(GroupWorld world, String name, String value) throws Exception {
        String group = world.cluster.freshName();
        var refusal = Check.refused(org.apache.kafka.common.errors.ApiException.class, name + "=" + value, () -> {
            world.configure(group, name, value);
            return null;
        });
        Check.that(refusal instanceof InvalidConfigurationException || refusal instanceof InvalidRequestException,
                "the refusal: " + refusal);
    }
}
