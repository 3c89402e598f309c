package scenarios;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;

/** ACLs, SCRAM credentials and quotas of a user are created, described and deleted. */
final class AdminSecurity implements Scenario {
    @Override
    public void run(Cluster cluster) throws Exception {
        String user = cluster.freshName();
        acls(cluster.admin, user);
        credentials(cluster.admin, user);
        quotas(cluster.admin, user);
    }

    private static void acls(Admin admin, String user) throws Exception {
        AclBinding acl = new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, user, PatternType.PREFIXED),
                new AccessControlEntry("User:" + user, "10.0.0.1", AclOperation.READ, AclPermissionType.DENY));
        Cluster.get(admin.createAcls(List.of(acl)).all());
        Check.equal(Set.of(acl), Set.copyOf(Cluster.get(admin.describeAcls(acl.toFilter()).values())), "ACLs");
        Check.equal(Set.of(acl), Set.copyOf(Cluster.get(admin.deleteAcls(List.of(acl.toFilter())).all())), "deleted");
        Check.equal(Set.of(), Set.copyOf(Cluster.get(admin.describeAcls(acl.toFilter()).values())), "ACLs left");
    }

    private static void credentials(Admin admin, String user) throws Exception {
        ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096);
        Cluster.get(admin.alterUserScramCredentials(
                List.of(new UserScramCredentialUpsertion(user, info, "password"))).all());
        var described = Cluster.get(admin.describeUserScramCredentials(List.of(user)).description(user));
        Check.equal(List.of(info), described.credentialInfos(), "credentials");
        Cluster.get(admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512))).all());
        Check.that(!Cluster.get(admin.describeUserScramCredentials().users()).contains(user), "the user is left");
    }

    private static void quotas(Admin admin, String user) throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, user));
        ClientQuotaFilter filter = ClientQuotaFilter.containsOnly(
                List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, user)));
        alter(admin, entity, 1e6);
        Check.equal(Map.of(entity, Map.of("producer_byte_rate", 1e6)),
                Cluster.get(admin.describeClientQuotas(filter).entities()), "quotas");
        alter(admin, entity, null);
        Check.equal(Map.of(), Cluster.get(admin.describeClientQuotas(filter).entities()), "quotas left");
    }

    private static void alter(Admin admin, ClientQuotaEntity entity, Double rate) throws Exception {
        var change = new ClientQuotaAlteration.Op("producer_byte_rate", rate);
        Cluster.get(admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(change)))).all());
    }
}
