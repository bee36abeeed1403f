"""py-eureka-client as a program: `peer.py URL`, then one command a line on standard input, each answered by one JSON line.

register SERVICE HOST PORT [KEY=VALUE…]   and renews every second
deregister SERVICE
list SERVICE                              as its XML reader understands the server
"""

import asyncio
import json
import sys
import urllib.error

import py_eureka_client.eureka_client as eureka

registered = {}


async def answer(server, word, service, *rest):
    if word == "register":
        host, port, *pairs = rest
        client = eureka.EurekaClient(
            eureka_server=server,
            app_name=service,
            instance_host=host,
            instance_ip=host,
            instance_port=int(port),
            renewal_interval_in_secs=1,
            duration_in_secs=3,
            metadata=dict(pair.split("=", 1) for pair in pairs),
            should_discover=False,
        )
        await client.start()
        registered[service] = client
        return {"registered": True}
    if word == "deregister":
        await registered.pop(service).stop()
        return {"deregistered": True}
    if word == "list":
        try:
            found = (await eureka.get_application(server, service)).instances
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            found = []
        return [
            {"id": i.instanceId, "address": f"{i.hostName}:{i.port.port}", "status": i.status, "metadata": i.metadata}
            for i in sorted(found, key=lambda i: i.instanceId)
        ]
    raise ValueError(word)


async def main():
    # Its messages must not mix with ours.
    out, sys.stdout = sys.stdout, sys.stderr
    print('{"ready":true}', file=out, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await answer(sys.argv[1], *line.split()), ensure_ascii=False), file=out, flush=True)
    for client in registered.values():
        await client.stop()


asyncio.run(main())
