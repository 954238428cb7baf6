"""Makes inputs of workloads and compares outputs, in a process without the code under test.

It talks to koderz as a leg does. Frames that come in are a JSON order, and for a comparison the expected output, the
output and the input.
"""

import json
import math
import random
import signal
import sys

from channel import receive, send


def equal(expected, got, x=None):
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return math.isclose(expected, got, rel_tol=1e-9) or (
            math.isnan(expected) and math.isnan(got)
        )
    if isinstance(expected, int) and isinstance(got, float):  # a whole number is to be met exactly
        return expected == got
    if type(expected) is not type(got):
        return False
    if isinstance(expected, list):
        return len(expected) == len(got) and all(map(equal, expected, got))
    if isinstance(expected, dict):
        return expected.keys() == got.keys() and all(
            equal(expected[key], got[key]) for key in expected
        )
    return expected == got


class Late(BaseException):
    """A comparison takes too long. It is no Exception, so that a workload can't catch it."""


def late(*_):
    raise Late


def is_same(compare, expected, got, x, seconds):
    """Whether two outputs are equal by the workload's comparison; None if that takes too long."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return bool(compare(expected, got, x))
    except Exception:  # what is got may be anything
        return False
    except Late:
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def told(compare, expected, got, x, seconds):
    same = is_same(compare, expected, got, x, seconds)
    if same is None and is_same(compare, expected, expected, x, seconds) is None:
        sys.exit(f"`equal` takes longer than {seconds:.3g} s, of what base returns, too")
    return b"same" if same else b"different"


def main():
    signal.signal(signal.SIGALRM, late)
    spaces = {}
    for name, source in json.loads(receive())["workloads"].items():
        space = spaces[name] = {"__name__": f"workload_{name}"}
        exec(compile(source, f"<workload {name}>", "exec"), space)
    send(b"ready")
    while content := receive():
        order = json.loads(content)
        space = spaces[order["workload"]]
        if "seed" in order:
            made = space["inputs"](random.Random(order["seed"]), order["number"])
            send(json.dumps(made).encode())
        else:
            expected, got, x = (json.loads(receive()) for _ in range(3))
            send(told(space.get("equal", equal), expected, got, x, order["seconds"]))


main()
