"""Prints the command that adds an extra, or a package; with `installed`, which packages there are."""

import sys
from importlib.util import find_spec


def main() -> None:
    """Do what the first word says with the second."""
    from koderz.settings import installation

    word, *rest = sys.argv[1:]
    if word == "installed":
        print(*[name for name in ("sprout", "twig") if find_spec(name)])
    else:
        print(getattr(installation, word)(*rest))
