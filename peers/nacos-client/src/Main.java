import com.alibaba.nacos.api.exception.NacosException;
import com.alibaba.nacos.api.naming.NamingFactory;
import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.listener.NamingEvent;
import com.alibaba.nacos.api.naming.pojo.Instance;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Nacos' own client as a program: {@code Main HOST:PORT NAMESPACE FOLDER [USER PASSWORD]}, then one command a line on standard input, each
 * answered by one JSON line. {@code register SERVICE GROUP IP PORT CLUSTER WEIGHT [KEY=VALUE…]},
 * {@code persistent} with the same words, {@code batch SERVICE GROUP IP:PORT…}, {@code deregister SERVICE GROUP IP PORT CLUSTER},
 * {@code all SERVICE GROUP} (every instance), {@code select SERVICE GROUP} (the healthy ones that weigh something),
 * {@code subscribe SERVICE GROUP}, {@code pushed SERVICE GROUP} (the list pushed last, null before the first).
 */
public final class Main {
    private Main() {}

    /** Log lines of libraries must not mix with ours. */
    private static final PrintStream OUT = System.out;
    private static final Map<String, List<Instance>> PUSHED = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        // Its logs and caches belong into a folder of the test's.
        System.setProperty("user.home", args[2]);
        System.setProperty("JM.LOG.PATH", args[2]);
        System.setProperty("JM.SNAPSHOT.PATH", args[2]);
        Properties properties = new Properties();
        properties.put("serverAddr", args[0]);
        properties.put("namespace", args[1]);
        if (args.length > 4) {
            properties.put("username", args[3]);
            properties.put("password", args[4]);
        }
        NamingService naming = NamingFactory.createNamingService(properties);
        say("{\"ready\":true}");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            try {
                say(answer(naming, line.split(" ")));
            } catch (NacosException error) {
                say("{\"error\":" + error.getErrCode() + ",\"message\":" + text(error.getErrMsg()) + "}");
            }
        }
        naming.shutDown();
        System.exit(0);
    }

    private static String answer(NamingService naming, String[] w) throws NacosException {
        String service = w[1];
        String group = w[2];
        switch (w[0]) {
            case "register":
            case "persistent": {
                Instance instance = instance(w[3], w[4]);
                instance.setClusterName(w[5]);
                instance.setWeight(Double.parseDouble(w[6]));
                instance.setEphemeral(w[0].equals("register"));
                Map<String, String> metadata = new TreeMap<>();
                for (String pair : Arrays.copyOfRange(w, 7, w.length)) {
                    int at = pair.indexOf('=');
                    metadata.put(pair.substring(0, at), pair.substring(at + 1));
                }
                instance.setMetadata(metadata);
                naming.registerInstance(service, group, instance);
                return "{\"registered\":true}";
            }
            case "batch": {
                List<Instance> instances = new ArrayList<>();
                for (String address : Arrays.copyOfRange(w, 3, w.length)) {
                    int at = address.lastIndexOf(':');
                    instances.add(instance(address.substring(0, at), address.substring(at + 1)));
                }
                naming.batchRegisterInstance(service, group, instances);
                return "{\"registered\":true}";
            }
            case "deregister":
                naming.deregisterInstance(service, group, w[3], Integer.parseInt(w[4]), w[5]);
                return "{\"deregistered\":true}";
            case "all":
                return list(naming.getAllInstances(service, group));
            case "select":
                return list(naming.selectInstances(service, group, true));
            case "subscribe":
                naming.subscribe(service, group, event -> PUSHED.put(group + "@@" + service, ((NamingEvent) event).getInstances()));
                return "{\"subscribed\":true}";
            case "pushed": {
                List<Instance> pushed = PUSHED.get(group + "@@" + service);
                return pushed == null ? "null" : list(pushed);
            }
            default:
                throw new IllegalArgumentException(w[0]);
        }
    }

    private static Instance instance(String ip, String port) {
        Instance instance = new Instance();
        instance.setIp(ip);
        instance.setPort(Integer.parseInt(port));
        return instance;
    }

    private static String list(List<Instance> instances) {
        List<String> items = new ArrayList<>();
        for (Instance i : instances) {
            List<String> metadata = new ArrayList<>();
            for (Map.Entry<String, String> pair : new TreeMap<>(i.getMetadata()).entrySet()) {
                metadata.add(text(pair.getKey()) + ":" + text(pair.getValue()));
            }
            items.add("{\"address\":" + text(i.getIp() + ":" + i.getPort()) + ",\"cluster\":" + text(i.getClusterName())
                + ",\"weight\":" + i.getWeight() + ",\"healthy\":" + i.isHealthy() + ",\"enabled\":" + i.isEnabled()
                + ",\"ephemeral\":" + i.isEphemeral() + ",\"metadata\":{" + String.join(",", metadata) + "}}");
        }
        items.sort(null);
        return "[" + String.join(",", items) + "]";
    }

    private static String text(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : String.valueOf(text).toCharArray()) {
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

    private static void say(String line) {
        OUT.println(line);
        OUT.flush();
    }
}
