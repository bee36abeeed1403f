import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.seata.common.metadata.ClusterRole;
import org.apache.seata.common.metadata.Instance;
import org.apache.seata.common.metadata.Node;
import org.apache.seata.discovery.registry.RegistryFactory;
import org.apache.seata.discovery.registry.RegistryService;
import org.apache.seata.discovery.registry.namingserver.NamingserverRegistryServiceImpl;

/**
 * The released Seata client under a test's control.
 *
 * Usage: Main TYPE SERVER CLUSTER [key=value]...
 *
 * TYPE is etcd3, redis, zk, nacos, raft or seata (the NamingServer); SERVER is the registry's host:port, or several with commas;
 * CLUSTER is the cluster that the transaction group "default_tx_group" belongs to. Further key=value become system properties
 * registry.TYPE.key.
 *
 * Then one command a line on standard input, each answered by one line of JSON on standard output:
 *
 *   lookup                       {"addresses":["10.0.0.1:8091"]}, sorted; a failed lookup is {"error":"..."}
 *   register HOST:PORT           {"registered":"HOST:PORT"}
 *   unregister HOST:PORT         {"unregistered":"HOST:PORT"}
 *
 * The first line says that it is ready: {"ready":"class of the registry"}. End of input ends the program at once, without
 * unregistering, as a kill would.
 */
public class Main {
    private static final String GROUP = "default_tx_group";

    public static void main(String[] args) throws Exception {
        // Log lines of libraries must not mix with ours.
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        String type = args[0];
        String prefix = "registry." + type + ".";
        System.setProperty("registry.type", type);
        System.setProperty("service.vgroupMapping." + GROUP, args[2]);
        System.setProperty("java.net.preferIPv4Stack", "true");
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
        // Only the NamingServer's key is spelled differently.
        System.setProperty(prefix + (type.equals("seata") ? "server-addr" : "serverAddr"), type.equals("etcd3") ? "http://" + args[1] : args[1]);
        System.setProperty(prefix + "cluster", args[2]);
        if (type.equals("zk")) {
            // The usual two seconds are too short for a busy machine.
            System.setProperty(prefix + "sessionTimeout", "20000");
            System.setProperty(prefix + "connectTimeout", "20000");
        }
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            System.setProperty(prefix + pair[0], pair[1]);
        }
        RegistryService<?> registry = RegistryFactory.getInstance();
        out.println("{\"ready\":" + quote(registry.getClass().getName()) + "}");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println(answer(registry, args[2], line.trim().split(" ")));
            } catch (Throwable error) {
                out.println("{\"error\":" + quote(String.valueOf(error)) + "}");
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static String answer(RegistryService<?> registry, String cluster, String[] command) throws Exception {
        switch (command[0]) {
            case "lookup": {
                List<InetSocketAddress> found = registry.lookup(GROUP);
                List<String> addresses = new ArrayList<>();
                for (InetSocketAddress address : found == null ? List.<InetSocketAddress>of() : found) {
                    InetAddress ip = address.getAddress();
                    addresses.add(quote((ip == null ? address.getHostString() : ip.getHostAddress()) + ":" + address.getPort()));
                }
                addresses.sort(null);
                return "{\"addresses\":[" + String.join(",", addresses) + "]}";
            }
            case "register":
                if (registry instanceof NamingserverRegistryServiceImpl) {
                    ((NamingserverRegistryServiceImpl) registry).register(instance(address(command[1]), cluster));
                } else {
                    registry.register(address(command[1]));
                }
                return "{\"registered\":" + quote(command[1]) + "}";
            case "unregister":
                if (registry instanceof NamingserverRegistryServiceImpl) {
                    ((NamingserverRegistryServiceImpl) registry).unregister(instance(address(command[1]), cluster));
                } else {
                    registry.unregister(address(command[1]));
                }
                return "{\"unregistered\":" + quote(command[1]) + "}";
            default:
                return "{\"error\":" + quote("unknown command " + command[0]) + "}";
        }
    }

    /** What a Seata server tells the NamingServer about itself. */
    private static Instance instance(InetSocketAddress address, String cluster) {
        String unit = "unit-" + address.getPort();
        Instance instance = Instance.getInstance();
        instance.setNamespace("public");
        instance.setClusterName(cluster);
        instance.setUnit(unit);
        instance.setControl(new Node.Endpoint(address.getHostString(), 7091, "http"));
        instance.setTransaction(new Node.Endpoint(address.getHostString(), address.getPort(), "netty"));
        instance.setRole(ClusterRole.MEMBER);
        Map<String, Object> groups = new HashMap<>();
        groups.put(GROUP, unit);
        Map<String, Object> metadata = new HashMap<>();
        metadata.put("cluster-type", "default");
        metadata.put("vGroup", groups);
        metadata.put("weight", 5);
        metadata.put("env", "");
        instance.setMetadata(metadata);
        return instance;
    }

    private static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    private static String quote(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
