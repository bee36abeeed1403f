package peer;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.context.ServletWebServerApplicationContext;
import org.springframework.cloud.client.ServiceInstance;
import org.springframework.cloud.client.discovery.DiscoveryClient;
import org.springframework.cloud.client.loadbalancer.LoadBalancerClient;
import org.springframework.context.ConfigurableApplicationContext;

/**
 * A Spring application that registers itself with the port it listens on, which is its first line, and answers one line of
 * JSON per line on standard input:
 * <pre>
 * services          the names it discovers
 * list SERVICE      the instances of a service as DiscoveryClient gives them
 * choose SERVICE N  how often LoadBalancerClient chose which host:port in N picks
 * </pre>
 * Answers start with {@code > }. Which registry it uses is a matter of its arguments. Ends with its standard input.
 */
@EnableAutoConfiguration
public class Client {
    public static void main(String[] args) throws Exception {
        // What the application logs must not look like an answer.
        PrintStream out = System.out;
        System.setOut(System.err);
        ConfigurableApplicationContext context = SpringApplication.run(Client.class, args);
        DiscoveryClient discovery = context.getBean(DiscoveryClient.class);
        LoadBalancerClient balancer = context.getBean(LoadBalancerClient.class);
        ObjectMapper json = new ObjectMapper();
        out.println("> " + ((ServletWebServerApplicationContext) context).getWebServer().getPort());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            Object answer;
            try {
                answer = switch (words[0]) {
                    case "services" -> discovery.getServices();
                    case "list" -> list(discovery, words[1]);
                    case "choose" -> choose(balancer, words[1], Integer.parseInt(words[2]));
                    default -> Map.of("error", "unknown command " + words[0]);
                };
            } catch (RuntimeException error) {
                answer = Map.of("error", error.toString());
            }
            out.println("> " + json.writeValueAsString(answer));
        }
        context.close();
    }

    private static List<Map<String, Object>> list(DiscoveryClient discovery, String service) {
        List<Map<String, Object>> out = new ArrayList<>();
        for (ServiceInstance instance : discovery.getInstances(service)) {
            Map<String, Object> map = new LinkedHashMap<>();
            map.put("id", instance.getInstanceId());
            map.put("host", instance.getHost());
            map.put("port", instance.getPort());
            map.put("metadata", instance.getMetadata());
            out.add(map);
        }
        return out;
    }

    private static Map<String, Integer> choose(LoadBalancerClient balancer, String service, int picks) {
        Map<String, Integer> out = new TreeMap<>();
        for (int i = 0; i < picks; i++) {
            ServiceInstance instance = balancer.choose(service);
            out.merge(instance == null ? "none" : instance.getHost() + ":" + instance.getPort(), 1, Integer::sum);
        }
        return out;
    }
}
