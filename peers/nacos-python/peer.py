"""Nacos' own Python client as a program: `peer.py HOST:PORT NAMESPACE FOLDER [USER PASSWORD]`, then one command a line on standard
input, each answered by one JSON line. The commands are those of `peers/nacos-client/src/Main.java`."""

import asyncio
import json
import sys

from v2.nacos import ClientConfigBuilder, NacosNamingService
from v2.nacos.naming.model.naming_param import (
    BatchRegisterInstanceParam,
    DeregisterInstanceParam,
    ListInstanceParam,
    RegisterInstanceParam,
    SubscribeServiceParam,
)

pushed = {}


def shown(instances):
    items = [
        {
            "address": f"{i.ip}:{i.port}",
            "cluster": i.clusterName,
            "weight": i.weight,
            "healthy": i.healthy,
            "enabled": i.enabled,
            "ephemeral": i.ephemeral,
            "metadata": i.metadata,
        }
        for i in instances
    ]
    return sorted(items, key=lambda item: item["address"])


async def answer(naming, word, service, group, rest):
    names = {"service_name": service, "group_name": group}
    if word in ("register", "persistent"):
        ip, port, cluster, weight, *pairs = rest
        await naming.register_instance(
            RegisterInstanceParam(
                ip=ip,
                port=int(port),
                cluster_name=cluster,
                weight=float(weight),
                ephemeral=word == "register",
                metadata=dict(pair.split("=", 1) for pair in pairs),
                **names,
            )
        )
        return {"registered": True}
    if word == "batch":
        places = [address.rsplit(":", 1) for address in rest]
        instances = [RegisterInstanceParam(ip=ip, port=int(port), **names) for ip, port in places]
        await naming.batch_register_instances(BatchRegisterInstanceParam(instances=instances, **names))
        return {"registered": True}
    if word == "deregister":
        ip, port, cluster = rest
        await naming.deregister_instance(
            DeregisterInstanceParam(ip=ip, port=int(port), cluster_name=cluster, **names)
        )
        return {"deregistered": True}
    if word == "all":
        return shown(await naming.list_instances(ListInstanceParam(subscribe=False, healthy_only=None, **names)))
    if word == "select":
        return shown(await naming.list_instances(ListInstanceParam(subscribe=False, healthy_only=True, **names)))
    if word == "subscribe":

        async def on_change(instances):
            pushed[(service, group)] = shown(instances)

        await naming.subscribe(SubscribeServiceParam(subscribe_callback=on_change, **names))
        return {"subscribed": True}
    if word == "pushed":
        return pushed.get((service, group))
    raise ValueError(word)


async def main():
    server, namespace, folder, *login = sys.argv[1:]
    # Its messages must not mix with ours.
    out, sys.stdout = sys.stdout, sys.stderr
    config = ClientConfigBuilder().server_address(server).namespace_id(namespace).log_dir(folder).cache_dir(folder)
    if login:
        config = config.username(login[0]).password(login[1])
    naming = await NacosNamingService.create_naming_service(config.build())
    print('{"ready":true}', file=out, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, service, group, *rest = line.split()
        try:
            said = await answer(naming, word, service, group, rest)
        except Exception as error:  # whatever its client raises is an answer too
            said = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(said, ensure_ascii=False), file=out, flush=True)
    await naming.shutdown()


asyncio.run(main())
