"""Runs koderz' pytest in a sandbox in the way that uv, uvx and pytest are asked to, with nothing from a network.

It runs on whatever python3 there is, alone: it imports nothing of koderz.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module, metadata

HERE = "/opt/koderz/tools"
SITE, PYTEST = f"{HERE}/site", f"{HERE}/pytest"
REPORTING = "/opt/koderz/reporting"
RUNNERS = ("pytest", "py.test")
WITH_VALUE = {
    *(
        "-p",
        "--python",
        "--index-url",
        "--default-index",
        "--index",
        "-i",
        "--extra-index-url",
        "-f",
        "--find-links",
    ),
    *(
        "--cache-dir",
        "--directory",
        "--project",
        "--group",
        "--extra",
        "--target",
        "--config-file",
        "--env-file",
    ),
}
OUR_OWN = {"pytest", "pytest-json-ctrf"}
OF_CACHE = {
    "--lf",
    "--last-failed",
    "--ff",
    "--failed-first",
    "--nf",
    "--new-first",
    "--cache-show",
    "--cache-clear",
}
REFUSED = {
    "-r",
    "--requirement",
    "--requirements",
    "--with-requirements",
    "--with-editable",
    "-e",
    "--editable",
}


class NotHereError(Exception):
    """A requested package isn't here."""


def main(words: list[str]) -> int:
    """The exit code of what was asked for."""
    sys.path[:0] = [SITE]
    sys.path.append(PYTEST)
    program, *rest = words
    try:
        if program in RUNNERS:
            return pytest(rest, [])
        return run(rest, "uvx") if program == "uvx" else uv(rest)
    except NotHereError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 127


def uv(words: list[str]) -> int:
    """The commands of uv that verifiers use."""
    options, rest = split(words)
    command = rest[0] if rest else "--version"
    if command == "run":
        return run(rest[1:], "uv run")
    if command == "tool" and rest[1:2] == ["run"]:
        return run(rest[2:], "uv tool run")
    if command == "pip" and rest[1:2] in (["install"], ["sync"]):
        return installed(rest[2:])
    if command == "tool" and rest[1:2] == ["install"]:
        return installed(rest[2:])
    if command == "add":
        return installed(rest[1:])
    if command == "venv":
        return venv(split(rest[1:])[1])
    if command in ("init", "sync", "lock", "python", "self", "cache", "--version", "version"):
        sys.stdout.write("uv 0 (koderz stands in for it)\n")
        return 0
    raise NotHereError(f"koderz doesn't stand in for `uv {command}`; options {options}")


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The packages that options before a command ask for, and the command with its arguments."""
    wanted: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, is_joined, value = words[at].partition("=")
        if name in REFUSED:
            raise NotHereError(f"{name} isn't followed by koderz, which stands in for it")
        takes = name in WITH_VALUE or name in ("-w", "--with", "--from")
        if takes and not is_joined:
            at += 1
            value = words[at] if at < len(words) else ""
        if name in ("-w", "--with", "--from"):
            wanted += [each for each in value.split(",") if each]
        at += 1
    rest = words[at:]
    return wanted, rest[1:] if rest[:1] == ["--"] else rest


def run(words: list[str], called: str) -> int:
    """Runs a program with packages: `[OPTION…] PROGRAM [ARGUMENT…]`."""
    wanted, rest = split(words)
    if not rest:
        raise NotHereError(f"{called} names no program")
    program, *arguments = rest
    name = re.split(r"[@=<>~!\[]", program, maxsplit=1)[0]
    require(wanted)
    if name in RUNNERS:
        return pytest(arguments, wanted)
    if re.fullmatch(r"python(3(\.\d+)?)?", name):
        if arguments[:2] == ["-m", "pytest"]:
            return pytest(arguments[2:], wanted)
        return started([sys.executable, *arguments])
    if called == "uv run":
        return started(rest)
    raise NotHereError(
        f"koderz stands in for {called} of pytest and python alone, not of {program}"
    )


def started(argv: list[str]) -> int:
    """Runs a program that sees the packages and our pytest."""
    path = os.pathsep.join([f"{HERE}/bin", os.environ.get("PATH", "")])
    packages = os.pathsep.join(filter(None, [SITE, os.environ.get("PYTHONPATH", ""), PYTEST]))
    return subprocess.call(argv, env={**os.environ, "PATH": path, "PYTHONPATH": packages})


def installed(words: list[str]) -> int:
    """Whether packages are here that were to be installed."""
    packages: list[str] = []
    rest = words
    while rest:
        _, rest = split(rest)
        if rest:
            packages.append(rest[0])
            rest = rest[1:]
    require(packages)
    return 0


def venv(words: list[str]) -> int:
    """An environment that is activated to no effect but that our pytest is found."""
    folder = os.path.join(words[0] if words else ".venv", "bin")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "activate"), "w", encoding="utf-8") as file:
        file.write(f'export PATH="{HERE}/bin:{HERE}:$PATH"\ndeactivate() {{ :; }}\n')
    return 0


def require(packages: list[str]) -> None:
    """Raises NotHereError for the first package that isn't here. Any version will do."""
    for package in packages:
        name = re.split(r"[\s=<>~!;\[@]", package.strip(), maxsplit=1)[0]
        if name.lower().replace("_", "-") not in OUR_OWN and distribution(name) is None:
            raise NotHereError(f"the package {name} isn't here; give its wheel with --wheels DIR")


def distribution(name: str) -> metadata.Distribution | None:
    """A distribution that can be imported here."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def pytest(arguments: list[str], wanted: list[str]) -> int:
    """Runs our pytest with the plugins that were wanted; without any wanted, with all that wheels brought."""
    sys.path[:0] = [PYTEST]
    try:
        framework = import_module("pytest")
    except (ImportError, SyntaxError) as error:
        raise NotHereError(f"koderz' pytest doesn't run on this python3 ({error})") from None
    names = [re.split(r"[\s=<>~!;\[@]", each.strip(), maxsplit=1)[0] for each in wanted]
    found = (
        [distribution(name) for name in names] if names else [*metadata.distributions(path=[SITE])]
    )
    plugins = [
        entry.name
        for each in found
        if each
        for entry in each.entry_points
        if entry.group == "pytest11"
    ]
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    sys.argv = ["pytest", *arguments]
    sys.path.remove(PYTEST)
    sys.path.append(PYTEST)
    options = [word for name in dict.fromkeys(plugins) for word in ("-p", name)]
    sys.path.append(REPORTING)
    if not any(word.split("=")[0] in OF_CACHE for word in arguments):
        options += ["-p", "no:cacheprovider"]  # /tests can't be written
    if "pytest_json_ctrf" not in plugins and not any("ctrf" in name for name in plugins):
        sys.path.append(HERE)
        options += ["-p", "ctrf"]
    return int(framework.main([*options, *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
