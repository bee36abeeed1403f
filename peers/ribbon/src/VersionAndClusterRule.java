import com.alibaba.cloud.nacos.NacosDiscoveryProperties;
import com.alibaba.cloud.nacos.ribbon.ExtendBalancer;
import com.alibaba.cloud.nacos.ribbon.NacosServer;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.netflix.client.config.IClientConfig;
import com.netflix.loadbalancer.AbstractLoadBalancerRule;
import com.netflix.loadbalancer.BaseLoadBalancer;
import com.netflix.loadbalancer.Server;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.Collectors;

/**
 * The rule many shops write on top of Nacos and Ribbon, which the preset "nacos-cluster" stands for:
 * the version the caller asks for, then the caller's own cluster, then weighted random.
 */
final class VersionAndClusterRule extends AbstractLoadBalancerRule {
    private final NacosDiscoveryProperties caller;
    private final NamingService naming;

    VersionAndClusterRule(NacosDiscoveryProperties caller, NamingService naming) {
        this.caller = caller;
        this.naming = naming;
    }

    @Override
    public void initWithNiwsConfig(IClientConfig config) {}

    @Override
    public Server choose(Object key) {
        try {
            String service = ((BaseLoadBalancer) getLoadBalancer()).getName();
            List<Instance> candidates = naming.selectInstances(service, caller.getGroup(), true);

            String version = caller.getMetadata().get("target-version");
            if (isSet(version)) {
                candidates = only(candidates, instance -> version.equals(instance.getMetadata().get("version")));
                if (candidates.isEmpty()) {
                    return null;
                }
            }

            String cluster = caller.getClusterName();
            if (isSet(cluster)) {
                List<Instance> near = only(candidates, instance -> cluster.equals(instance.getClusterName()));
                // A call across clusters is better than none.
                candidates = near.isEmpty() ? candidates : near;
            }

            Instance chosen = ExtendBalancer.getHostByRandomWeight2(candidates);
            return chosen == null ? null : new NacosServer(chosen);
        } catch (Exception e) {
            return null;
        }
    }

    private static List<Instance> only(List<Instance> instances, Predicate<Instance> condition) {
        return instances.stream().filter(condition).collect(Collectors.toList());
    }

    private static boolean isSet(String text) {
        return text != null && !text.trim().isEmpty();
    }
}
