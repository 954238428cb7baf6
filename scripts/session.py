#!/usr/bin/env python3
"""The sessions that README.md and docs/ show, made anew: their commands are run and the output is put in its place.

    scripts/session.py [--check] [PAGE …]

Every block that begins with `$ ` is one; those of a page run in one scratch folder, in their order, with the
simulated model, beside the files that the page gives a title. Where a command's output ends with `…`, as many lines
as stand there are kept. Ids, dates, times and seconds are always the same ones. With --check nothing is written: exit
code 1, and the difference, where a page is stale. Without a page all are looked at.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import checkout

RUN_ID, DATE, TIME = "bench_1f24e33a_20261121_093541", "2026-11-21", "09:35"
STAMP = "20261121__09-35-41"
_BLOCK = re.compile(r"(?<=^```\n)\$ .*?(?=^```$)|(?<=^```console\n)\$ .*?(?=^```$)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r'^```\w+ title="([\w.-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_PROGRESS = re.compile(  # printed every few seconds, if it takes so long, or the first time
    r"^(sinks: |the sinks catch up |warning: the sink |\d+/\d+ · |"
    r"(building|compiling) the WASM image|the WASM image is ready).*\n",
    re.MULTILINE,
)


def main() -> int:
    """Brings the pages up to date, or checks whether they are."""
    stale = False
    named = [Path(word).resolve() for word in sys.argv[1:] if not word.startswith("--")]
    for page in named or (checkout.ROOT / "README.md", *sorted((checkout.ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="koderz-session-") as folder:
            for name, content in _FILE.findall(text):
                Path(folder, name).write_text(content, encoding="utf-8")
            made = _BLOCK.sub(lambda block, folder=folder: _replayed(block[0], Path(folder)), text)  # type: ignore[misc]
        if "--check" not in sys.argv[1:]:
            page.write_text(made, encoding="utf-8")
        elif made != text:
            sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), made.splitlines(True), page.name, "now"))
            stale = True
    return int(stale)


def _replayed(block: str, folder: Path) -> str:
    """The block with what its commands print now."""
    sessions = [session.rstrip("\n").split("\n") for session in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]]
    return "\n\n".join(_session(lines, folder) for lines in sessions) + "\n"


def _session(lines: list[str], folder: Path) -> str:
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    command, shown = "\n".join(lines[: last + 1]), lines[last + 1 :]
    printed = _printed(command.removeprefix("$ "), folder)
    if shown and shown[-1] == "…":
        printed = [*printed[: len(shown) - 1], "…"]
    return "\n".join([command, *printed])


def _printed(command: str, folder: Path) -> list[str]:
    """The lines on standard output and standard error, as they would be on another day."""
    home = {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OLLAMA_HOST": "127.0.0.1:9",
        "WASM_MANAGER_SERVICE_URL": "",
        "COLUMNS": "120",
    }
    koderz = f'python() {{ "{sys.executable}" "$@"; }}; koderz() {{ python -m koderz "$@"; }}; '
    done = subprocess.run(
        ["bash", "-c", koderz + command],
        cwd=folder,
        env=checkout.environment(**home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}\n{done.stdout}")
    text = normalized(_PROGRESS.sub("", done.stdout))
    return text.rstrip("\n").split("\n") if text else []


def normalized(text: str) -> str:
    """A text with ids, dates, times and seconds that are always the same ones."""
    text = re.sub(r"bench_[0-9a-f]{8}_\d{8}_\d{6}", RUN_ID, text)
    text = re.sub(r"\d{8}__\d\d-\d\d-\d\d", STAMP, text)
    text = re.sub(r"/\S+/(?=koderz/systems/)", "…/", text)
    text = re.sub(
        r"(?:^✓ Task .*\n)+", lambda found: "".join(sorted(found[0].splitlines(True))), text, flags=re.MULTILINE
    )
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", f"{DATE} {TIME}", text)
    text = re.sub(r"\bnamespaces\S*( by bubblewrap)?", "namespaces+landlock+seccomp", text)
    text = re.sub(r"(?<![\d:])\d:\d\d(?![\d:])", "0:02", text)
    text = re.sub(r"\b\d\.\d / \d\.\d\b", "0.2 / 0.4", text)
    return re.sub(r"\b\d+\.\d\d(s\b| s in )", r"0.42\1", text)


if __name__ == "__main__":
    sys.exit(main())
