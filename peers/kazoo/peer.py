"""ZooKeeper through kazoo, driven line by line.

peer.py HOST:PORT [USER:PASSWORD]; then one JSON request a line on standard input, each answered by one line of JSON. Data is
hexadecimal. End of input ends the program without closing its session, as a kill would.
"""

import json
import os
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException


def answer(client, request):
    path, do = request["path"], request["do"]
    if do == "create":
        data = bytes.fromhex(request["data"])
        client.create(path, data, ephemeral=request.get("ephemeral", False), makepath=True)
    elif do == "set":
        client.set(path, bytes.fromhex(request["data"]))
    elif do == "delete":
        client.delete(path, recursive=True)
    elif do == "get":
        data, stat = client.get(path)
        return {"data": data.hex(), "owner": stat.ephemeralOwner, "version": stat.version}
    elif do == "children":
        return {"children": sorted(client.get_children(path))}
    else:
        return {"error": f"unknown request {do}"}
    return {"done": do}


def main():
    auth = [("digest", sys.argv[2])] if len(sys.argv) > 2 else None
    client = KazooClient(hosts=sys.argv[1], timeout=2.0, auth_data=auth)
    client.start(timeout=60)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            out = answer(client, json.loads(line))
        except KazooException as error:
            out = {"error": type(error).__name__}
        print(json.dumps(out), flush=True)
    os._exit(0)


main()
