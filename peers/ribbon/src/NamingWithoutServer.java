import com.alibaba.nacos.api.naming.NamingService;
import com.alibaba.nacos.api.naming.pojo.Instance;
import com.alibaba.nacos.api.naming.pojo.ServiceInfo;
import com.alibaba.nacos.client.naming.NacosNamingService;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/**
 * A naming service that knows one list and asks no server.
 *
 * What selectInstances leaves out (unhealthy, disabled, weight 0 and below) is decided by the client's own code, which is private there.
 */
final class NamingWithoutServer {
    private NamingWithoutServer() {}

    static NamingService holding(Supplier<List<Instance>> list) throws Exception {
        Method select = NacosNamingService.class.getDeclaredMethod("selectInstances", ServiceInfo.class, boolean.class);
        select.setAccessible(true);
        // Its constructor would connect to a server.
        Object client = Reflection.allocate(NacosNamingService.class);
        return (NamingService) Proxy.newProxyInstance(
                NamingService.class.getClassLoader(), new Class<?>[] {NamingService.class}, (proxy, method, args) -> {
                    if (!method.getName().equals("selectInstances")) {
                        throw new UnsupportedOperationException(method.toString());
                    }
                    boolean healthy = (Boolean) args[args.length - 1];
                    ServiceInfo service = new ServiceInfo();
                    // The client filters the list in place.
                    service.setHosts(new ArrayList<>(list.get()));
                    return select.invoke(client, service, healthy);
                });
    }
}
