import com.alipay.sofa.registry.client.api.Publisher;
import com.alipay.sofa.registry.client.api.RegistryClientConfig;
import com.alipay.sofa.registry.client.api.registration.PublisherRegistration;
import com.alipay.sofa.registry.client.api.registration.SubscriberRegistration;
import com.alipay.sofa.registry.client.provider.DefaultRegistryClient;
import com.alipay.sofa.registry.client.provider.DefaultRegistryClientConfigBuilder;
import com.alipay.sofa.registry.core.model.ScopeEnum;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * SOFARegistry's own client as a program: {@code SofaClient HOST HTTP_PORT GROUP DATA_ID}, then one command a line on standard
 * input, after it said {@code ready}. {@code sub} follows the data id and prints {@code push DATA|DATA…} (sorted) for every push, {@code pub DATA…} publishes or
 * republishes, {@code unpub} takes it back. Every command is answered by {@code done COMMAND}; the end of input ends it.
 */
public final class SofaClient {
    private SofaClient() {}

    /** Log lines of libraries must not mix with ours. */
    private static final java.io.PrintStream OUT = System.out;

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        RegistryClientConfig config = DefaultRegistryClientConfigBuilder.start()
            .setRegistryEndpoint(args[0])
            .setRegistryEndpointPort(Integer.parseInt(args[1]))
            .setAppName("sofa-client")
            .setDataCenter("DefaultDataCenter")
            .setZone("DEFAULT_ZONE")
            .build();
        DefaultRegistryClient client = new DefaultRegistryClient(config);
        client.init();
        say("ready");
        Publisher publisher = null;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            String[] data = java.util.Arrays.copyOfRange(words, 1, words.length);
            switch (words[0]) {
                case "sub":
                    SubscriberRegistration wanted = new SubscriberRegistration(args[3], (id, pushed) -> {
                        List<String> all = new ArrayList<>();
                        for (Map.Entry<String, List<String>> zone : pushed.getZoneData().entrySet()) {
                            all.addAll(zone.getValue());
                        }
                        java.util.Collections.sort(all);
                        say("push " + String.join("|", all));
                    });
                    wanted.setGroup(args[2]);
                    wanted.setScopeEnum(ScopeEnum.global);
                    client.register(wanted);
                    break;
                case "pub":
                    if (publisher == null) {
                        PublisherRegistration registration = new PublisherRegistration(args[3]);
                        registration.setGroup(args[2]);
                        publisher = client.register(registration, data);
                    } else {
                        publisher.republish(data);
                    }
                    break;
                case "unpub":
                    publisher.unregister();
                    publisher = null;
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            say("done " + words[0]);
        }
        System.exit(0);
    }
}
