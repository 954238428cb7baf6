"""Runs a test script of GSO or ISO-Bench as a program, and reports when its experiment begins and ends.

It talks to koderz as a leg does, but speaks first: "call" before each call of `experiment` and "done" after it;
"stored" and the name under which a result is kept; at the end "end" and, as JSON, the seconds that the script itself
says that a call took. All but "stored" are answered.
"""

import ast
import functools
import json
import os
import sys
import types

import downloads
from channel import receive, send


def main(dumps=json.dumps):
    order = json.loads(receive())
    claims = []

    def experiment(function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            send(b"call")
            receive()
            result = function(*args, **kwargs)
            send(b"done")
            receive()
            return result

        return called

    def store_result(function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            given = [*args[1:], *kwargs.values(), *args[:1]]
            send(
                b"stored"
                + os.fsencode(next(each for each in given if isinstance(each, (str, os.PathLike))))
            )
            return function(*args, **kwargs)

        return called

    def run_test(function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            claims.append(function(*args, **kwargs))
            return claims[-1]

        return called

    watched = {"experiment": experiment, "store_result": store_result, "run_test": run_test}
    module = types.ModuleType("__main__")
    module.__file__ = order["file"]
    with open(order["file"], encoding="utf-8") as file:
        source = file.read()
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in watched:
            name = ast.Name(f"__koderz_{node.name}", ast.Load())
            node.decorator_list.insert(0, ast.copy_location(name, node))
            setattr(module, name.id, watched[node.name])
    sys.modules["__main__"] = module
    sys.argv = [order["file"], *order["argv"]]
    sys.path[:1] = order["path"]
    os.chdir(order["folder"])
    downloads.answer(source)
    try:
        exec(compile(tree, order["file"], "exec"), module.__dict__)
    except SystemExit as error:
        if error.code:
            raise
    send(b"end" + dumps([claim for claim in claims if isinstance(claim, (int, float))]).encode())
    receive()


main()
