"""py-consul as a program: `peer.py HOST PORT`, then one command a line on standard input, each answered by one JSON line.

register SERVICE ID HOST PORT TTL [KEY=VALUE…]   with a TTL check that passes
deregister ID
list SERVICE                                     the passing instances
"""

import json
import sys

import consul


def answer(client, word, *rest):
    if word == "register":
        service, id, host, port, ttl, *pairs = rest
        client.agent.service.register(
            service,
            service_id=id,
            address=host,
            port=int(port),
            tags=["python"],
            meta=dict(pair.split("=", 1) for pair in pairs),
            weights={"Passing": 4, "Warning": 1},
            check=consul.Check.ttl(ttl),
        )
        client.agent.check.ttl_pass(f"service:{id}")
        return {"registered": True}
    if word == "deregister":
        client.agent.service.deregister(rest[0])
        return {"deregistered": True}
    if word == "list":
        _, entries = client.health.service(rest[0], passing=True)
        services = [entry["Service"] for entry in entries]
        return [
            {
                "id": s["ID"],
                "address": f"{s['Address']}:{s['Port']}",
                "tags": s["Tags"],
                "meta": s["Meta"],
                "weight": s["Weights"]["Passing"],
            }
            for s in sorted(services, key=lambda s: s["ID"])
        ]
    raise ValueError(word)


def main():
    client = consul.Consul(sys.argv[1], int(sys.argv[2]))
    print('{"ready":true}', flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(client, *line.split()), ensure_ascii=False), flush=True)


main()
