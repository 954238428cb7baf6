"""Runs workloads on the code under test, in a process of its own.

The first frame has the workloads' sources by name and what goes first on the import path. Then, for each call: a frame
with the workload's name, one with the input, the answer "decoded", "go", and the output. An empty frame is the end.
"""

import json
import sys

from channel import receive, send


def main(loads=json.loads, dumps=json.dumps, getsource=None):
    order = loads(receive())
    sys.path[0] = order["path"]
    calls = {}
    for name, source in order["workloads"].items():
        space = {"__name__": f"workload_{name}"}
        exec(compile(source, f"<workload {name}>", "exec"), space)
        calls[name] = space["call"]
    send(b"ready")
    while name := receive():
        call, given = calls[name.decode()], loads(receive())
        send(b"decoded")
        receive()
        send(dumps(call(given)).encode())


main()
