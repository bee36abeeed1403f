import com.alibaba.cloud.nacos.NacosDiscoveryProperties;
import com.alibaba.cloud.nacos.NacosServiceManager;
import com.alibaba.cloud.nacos.ribbon.NacosRule;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.netflix.loadbalancer.AbstractLoadBalancerRule;
import com.netflix.loadbalancer.BaseLoadBalancer;
import com.netflix.loadbalancer.DynamicServerListLoadBalancer;
import com.netflix.loadbalancer.Server;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Picks with the original Nacos rule and with the published version-and-cluster rule, on instance lists read as JSON from standard input:
 *
 * <pre>{"picks": 20000, "cases": [{"name": "…", "caller": {"cluster": "BJ", "metadata": {"target-version": "v1"}},
 *  "instances": [{"address": "10.0.0.1:80", "weight": 1.0, "cluster": "BJ", "healthy": true, "enabled": true, "metadata": {"version": "v1"}}]}]}</pre>
 *
 * Prints one line per case, {"name": …, "original": {address: count}, "published": {address: count}}; picks of nothing count under "none".
 */
public final class Main {
    /** Any number does; fixed, so that a comparison does not depend on luck. */
    private static final long SEED = 20240229;

    public static void main(String[] args) throws Exception {
        // Loggers write to standard output; the results must stand there alone.
        PrintStream results = System.out;
        System.setOut(System.err);
        ((ch.qos.logback.classic.Logger) org.slf4j.LoggerFactory.getLogger("ROOT")).setLevel(ch.qos.logback.classic.Level.OFF);

        ObjectMapper json = new ObjectMapper();
        JsonNode input = json.readTree(System.in);
        int picks = input.path("picks").asInt();
        for (JsonNode testCase : input.path("cases")) {
            NacosDiscoveryProperties caller = caller(testCase.path("caller"));
            NamingService naming = NamingWithoutServer.holding(() -> instances(testCase.path("instances")));

            NacosRule original = new NacosRule();
            Reflection.set(original, NacosDiscoveryProperties.class, caller);
            Reflection.set(original, NacosServiceManager.class, manager(naming));
            original.init();

            Map<String, Object> result = new LinkedHashMap<>();
            result.put("name", testCase.path("name").asText());
            result.put("original", counts(original, picks));
            result.put("published", counts(new VersionAndClusterRule(caller, naming), picks));
            results.println(json.writeValueAsString(result));
        }
        results.flush();
        // Ribbon leaves timers behind that would keep the process alive.
        System.exit(0);
    }

    private static Map<String, Integer> counts(AbstractLoadBalancerRule rule, int picks) throws Exception {
        DynamicServerListLoadBalancer<Server> balancer = new DynamicServerListLoadBalancer<>();
        // The rules only ask the load balancer for the name of the service.
        Reflection.set(balancer, BaseLoadBalancer.class, "name", "orders");
        rule.setLoadBalancer(balancer);
        Reflection.seedThreadLocalRandom(SEED);
        Map<String, Integer> counts = new TreeMap<>();
        for (int i = 0; i < picks; i++) {
            Server server = rule.choose(null);
            counts.merge(server == null ? "none" : server.getHostPort(), 1, Integer::sum);
        }
        return counts;
    }

    private static NacosDiscoveryProperties caller(JsonNode node) {
        NacosDiscoveryProperties caller = new NacosDiscoveryProperties();
        caller.setGroup("DEFAULT_GROUP");
        // The rule decides between IPv4 and IPv6 by the caller's own address.
        caller.setIp("10.255.0.1");
        caller.setClusterName(node.path("cluster").asText(null));
        caller.setMetadata(strings(node.path("metadata")));
        return caller;
    }

    private static NacosServiceManager manager(NamingService naming) throws Exception {
        NacosServiceManager manager = new NacosServiceManager();
        Reflection.set(manager, NamingService.class, naming);
        return manager;
    }

    private static List<Instance> instances(JsonNode nodes) {
        List<Instance> instances = new ArrayList<>();
        for (JsonNode node : nodes) {
            String address = node.path("address").asText();
            int colon = address.lastIndexOf(':');
            Instance instance = new Instance();
            instance.setServiceName("orders");
            instance.setIp(address.substring(0, colon));
            instance.setPort(Integer.parseInt(address.substring(colon + 1)));
            instance.setWeight(node.path("weight").asDouble(1));
            instance.setClusterName(node.path("cluster").asText("DEFAULT"));
            instance.setHealthy(node.path("healthy").asBoolean(true));
            instance.setEnabled(node.path("enabled").asBoolean(true));
            instance.setMetadata(strings(node.path("metadata")));
            instances.add(instance);
        }
        return instances;
    }

    private static Map<String, String> strings(JsonNode node) {
        Map<String, String> strings = new LinkedHashMap<>();
        node.fields().forEachRemaining(field -> strings.put(field.getKey(), field.getValue().asText()));
        return strings;
    }
}
