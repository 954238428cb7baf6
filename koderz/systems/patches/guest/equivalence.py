"""Compares results stored by a test script, using the script's own check and base's code.

It talks to koderz as a leg does: one frame in, a JSON order; one out, as JSON: whether what is wrong is base's own
result, and why the results aren't equal, empty where they are.
What base's result isn't unpickled with, no other result is either: a pickle could otherwise do what it likes.
"""

import json
import math
import os
import sys
import types

from channel import receive, send


class Pickles:
    """The names in pickles: those in base's are noted, and others refused later."""

    def __init__(self):
        self.known, self.closed = set(), False

    def __call__(self, event, args):
        if event == "pickle.find_class":
            if self.closed and args not in self.known:
                raise ValueError(f"a pickle names {args[0]}.{args[1]}, which base's doesn't")
            self.known.add(args)


def equal(a, b):
    a, b = (each.tolist() if hasattr(each, "tolist") else each for each in (a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


def why_not(check, *pair):
    try:
        check(*pair)
    except Exception as error:
        return told(error)
    return ""


def told(error):
    return f"{type(error).__name__}: {error}"[:500]


def compared():
    order = json.loads(receive())
    sys.path[:1] = order["path"]
    module = types.ModuleType("checked")
    module.__file__ = order["file"]
    sys.modules["__main__"] = module
    with open(order["file"], encoding="utf-8") as file:
        exec(compile(file.read(), order["file"], "exec"), module.__dict__)
    load, check = module.load_result, module.check_equivalence
    pickles = Pickles()
    sys.addaudithook(pickles)
    os.chdir(order["expected"])
    try:
        expected = [load(name) for name, _ in order["names"]]
    except Exception as error:
        return True, told(error)
    pickles.closed = True
    os.chdir(order["got"])
    for before, (_, name) in zip(expected, order["names"]):
        try:
            after = load(name)
        except Exception as error:
            return False, f"its result can't be read: {told(error)}"
        pair = (after, before) if order["swapped"] else (before, after)
        why = why_not(check, *pair)
        if why and why_not(check, before, before):  # it is made for what was never stored
            why = "" if equal(before, after) else why
        if why:
            return False, why
    return False, ""


send(json.dumps(compared()).encode())
