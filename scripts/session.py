#!/usr/bin/env python3
"""The sessions that README.md and docs/ show, made anew: their commands are run and the output is put in its place.

    scripts/session.py [--check] [--koderz PROGRAM] [--folder FOLDER] [PAGE …]

Every block that begins with `$ ` is one; those of a page run in one scratch folder, in their order, with the
simulated model, beside the files that the page gives a title. Where a command's output ends with `…`, as many lines
as stand there are kept. Ids, dates, times and seconds are always the same ones. With --check nothing is written: exit
code 1, and the difference, where a page is stale. Without a page all are looked at. PROGRAM is what runs in place of
`python -m koderz`. FOLDER is used in place of a scratch folder, and kept.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import checkout
from koderz.settings.paths import cache_folder

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
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--koderz", metavar="PROGRAM")
    parser.add_argument("--folder", metavar="FOLDER")
    parser.add_argument("pages", metavar="PAGE", nargs="*", type=Path)
    named = parser.parse_args()
    koderz = shlex.quote(named.koderz) if named.koderz else "python -m koderz"
    stale = False
    for page in named.pages or (checkout.ROOT / "README.md", *sorted((checkout.ROOT / "docs").rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        with nullcontext(named.folder) if named.folder else TemporaryDirectory(prefix="koderz-session-") as folder:
            for name, content in _FILE.findall(text):
                Path(folder, name).write_text(content, encoding="utf-8")
            made = _BLOCK.sub(lambda block, folder=folder: _replayed(block[0], Path(folder), koderz), text)  # type: ignore[misc]
        if not named.check:
            page.write_text(made, encoding="utf-8")
        elif made != text:
            sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), made.splitlines(True), page.name, "now"))
            stale = True
    return int(stale)


def _replayed(block: str, folder: Path, koderz: str) -> str:
    """The block with what its commands print now."""
    sessions = [session.rstrip("\n").split("\n") for session in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]]
    return "\n\n".join(_session(lines, folder, koderz) for lines in sessions) + "\n"


def _session(lines: list[str], folder: Path, koderz: str) -> str:
    last = next(number for number, line in enumerate(lines) if not line.endswith("\\"))
    command, shown = "\n".join(lines[: last + 1]), lines[last + 1 :]
    printed = _printed(command.removeprefix("$ "), folder, koderz)
    if shown and shown[-1] == "…":
        printed = [*printed[: len(shown) - 1], "…"]
    return "\n".join([command, *printed])


def _printed(command: str, folder: Path, koderz: str) -> list[str]:
    """The lines on standard output and standard error, as they would be on another day."""
    home = {
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "KODERZ_WASM_CACHE": str(cache_folder() / "wasm"),  # the user's own: building the image takes a minute
        "OLLAMA_HOST": "127.0.0.1:9",
        "WASM_MANAGER_SERVICE_URL": "",
        "COLUMNS": "120",
    }
    defined = f'python() {{ "{sys.executable}" "$@"; }}; koderz() {{ {koderz} "$@"; }}; '
    done = subprocess.run(
        ["bash", "-c", defined + command],
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
    text = re.sub(r"time [+-]\d+\.\d s", "time +0.1 s", text)
    text = re.sub(r"\b\d\.\d / \d\.\d\b", "0.2 / 0.4", text)
    return re.sub(r"\b\d+\.\d\d(s\b| s in )", r"0.42\1", text)


if __name__ == "__main__":
    sys.exit(main())
