import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.retry.RetryOneTime;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import com.fasterxml.jackson.databind.ObjectMapper;

/**
 * Curator's service discovery under a test's control.
 *
 * Usage: Main SERVER BASE. Then one command a line on standard input, each answered by one line of JSON:
 *
 *   query NAME                                   the instances, by id
 *   names                                        the services
 *   register NAME ID HOST PORT [KEY VALUE]...    with a map as payload
 *   unregister ID                                what was registered here
 */
public class Main {
    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 20000, 20000, new RetryOneTime(1000));
        client.start();
        client.blockUntilConnected();
        // A map of any values, as a reader that knows nothing of the writer would say.
        @SuppressWarnings({"unchecked", "rawtypes"})
        ServiceDiscovery<Map> discovery =
            ServiceDiscoveryBuilder.builder(Map.class).client(client).basePath(args[1]).build();
        discovery.start();
        ObjectMapper json = new ObjectMapper();
        Map<String, ServiceInstance<Map>> registered = new HashMap<>();
        out.println("{\"ready\":true}");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] command = line.trim().split(" ");
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                switch (command[0]) {
                    case "query": {
                        Collection<ServiceInstance<Map>> found = discovery.queryForInstances(command[1]);
                        TreeMap<String, Object> instances = new TreeMap<>();
                        for (ServiceInstance<Map> instance : found) {
                            Map<String, Object> one = new LinkedHashMap<>();
                            one.put("id", instance.getId());
                            one.put("address", instance.getAddress());
                            one.put("port", instance.getPort());
                            one.put("enabled", instance.isEnabled());
                            one.put("payload", instance.getPayload() == null ? null : new TreeMap<>(instance.getPayload()));
                            instances.put(instance.getId(), one);
                        }
                        answer.put("instances", new ArrayList<>(instances.values()));
                        break;
                    }
                    case "names": {
                        List<String> names = new ArrayList<>(discovery.queryForNames());
                        names.sort(null);
                        answer.put("names", names);
                        break;
                    }
                    case "register": {
                        Map<String, String> payload = new HashMap<>();
                        for (int i = 5; i + 1 < command.length; i += 2) {
                            payload.put(command[i], command[i + 1]);
                        }
                        ServiceInstance<Map> instance = ServiceInstance.<Map>builder()
                            .name(command[1]).id(command[2]).address(command[3]).port(Integer.parseInt(command[4]))
                            .payload(payload).build();
                        discovery.registerService(instance);
                        registered.put(command[2], instance);
                        answer.put("registered", command[2]);
                        break;
                    }
                    case "unregister":
                        discovery.unregisterService(registered.remove(command[1]));
                        answer.put("unregistered", command[1]);
                        break;
                    default:
                        answer.put("error", "unknown command " + command[0]);
                }
            } catch (Exception error) {
                answer.put("error", String.valueOf(error));
            }
            out.println(json.writeValueAsString(answer));
        }
        Runtime.getRuntime().halt(0);
    }
}
