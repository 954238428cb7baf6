"""The README and the pages of docs/ as tests see them: their blocks, and a folder in which a page is followed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Shell
from tests.forks import forks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))}

LOGS = "docs/how-to/others-logs.md"
READS = re.compile(
    r"benchmark_results|load_summary|to_dataframe|koderz\.(benchmark|rescore)\(|search_runs|export_memories|"
    r"load_benchmark|run_ruler_benchmark"
)
"""What a script does that selects or adds up results: test_docs_queries runs each, but for those on logs of others."""

_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)

SUBSTITUTES = {
    "http://127.0.0.1:8000/v1": "$MODEL_SERVER/v1",  # of a vLLM: the loopback server answers in its place
    "127.0.0.1:8765": "127.0.0.1:0",  # a port that is free
    "koderz wasm serve --port 8080 &": "koderz wasm serve --port 0 > address & trap 'kill $! || true' EXIT\n"
    "until grep -qs http address; do sleep 0.1; done",
    "--wasm-url http://127.0.0.1:8080": "--wasm-url $(sed 's/.* //' address)",
    "http://HOST:5000": "sqlite:///shared.db",  # test_team has the server, and PostgreSQL below it
    "--task-threshold 0.67": "--task-threshold 0",  # which the simulated model doesn't reach
    # GSO's points decide on patches; only the base itself may be too far off from itself on a busy machine, a fault.
    "--max-blocks 7": "--max-blocks 2 --gso-strict || [ $? = 3 ]",
    "resume latest --past-decision": "resume latest",  # test_stopped asks the rest of a decided run
    "bench_0e4385d0": "latest",
    "=…": "=0123456789abcdef-given",
    "sk-…": "sk-test-4f9a",
}
"""What can't stand in a test as it stands on a page."""

_PYTHON = """
import os, pathlib, re, subprocess, sys
words = sys.argv[1:]
serves = ["-m koderz ui", "-m koderz memory serve --http", "-m koderz.testing --model"]
command = [sys.executable, *words]
if words[:2] == ["-m", "koderz"] and words[2:4] != ["wasm", "serve"]:  # which `wasm stop` knows by its command
    command = [pathlib.Path(sys.argv[0]).with_name("forked"), *words[2:]]
if not " ".join(words).startswith(tuple(serves)):
    os.execv(command[0], command)
server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for line in server.stdout:
    print(line, end="")
    if re.search("https?://", line):
        break
else:
    sys.exit(server.wait() or "it told no address")
server.terminate()
server.communicate()
"""
"""Python, where koderz is a process that is forked. What serves until it is ended is ended once it told its address."""

_KODERZ = """
import os, pathlib, sys
os.execv(pathlib.Path(sys.argv[0]).with_name("python"), ["python", "-m", "koderz", *sys.argv[1:]])
"""

_PIP = """
import pathlib, shutil, sys, tomllib
if not pathlib.Path("pyproject.toml").exists():
    sys.exit()  # of the README: koderz itself is installed
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
package = pathlib.Path("installed") / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
package.mkdir(parents=True)
(package / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {project['name']}\\nVersion: {project['version']}\\n")
with (package / "entry_points.txt").open("w") as file:
    for group, entries in project["entry-points"].items():
        print(f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()), sep="\\n", file=file)
for module in pathlib.Path().glob("koderz_*.py"):
    shutil.copy(module, "installed")
"""
"""`pip install .` as far as it matters: no index can be reached from a test."""

_CLAUDE = """
import subprocess, sys
if "--" in sys.argv:  # what Claude Code would start, and end by closing its input
    sys.exit(subprocess.run(sys.argv[sys.argv.index("--") + 1 :], stdin=subprocess.DEVNULL).returncode)
"""
"""`claude mcp add`, and that of Codex: others' program, which isn't here; what it is told to start is started."""

_MLFLOW = """
import os, subprocess, sys
command = [sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--help"]
env = {**os.environ, "PYTHONWARNINGS": "ignore"}
told = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
unknown = [word for word in sys.argv[1:] if word.startswith("--") and word not in told.stdout]
sys.exit(f"mlflow server has no {unknown}" if unknown or sys.argv[1] != "server" else 0)
"""
"""`mlflow server` on a host and a database that aren't there: its options are looked up. test_team runs one."""

_MODAL = """
import os, sys
words = sys.argv[1:]
if words == ["setup"]:
    sys.exit()
if words[:3] == ["secret", "create", "llm-api-keys"]:
    words[2] += "-of-a-page"
os.execv(sys.executable, [sys.executable, "-m", "modal", *words])
"""
"""Modal's client on the loopback Modal, without `setup`, which opens a browser; the secret stays as it is."""

COMMANDS = {
    "python": _PYTHON,
    "koderz": _KODERZ,
    "pip": _PIP,
    "claude": _CLAUDE,
    "codex": _CLAUDE,
    "mlflow": _MLFLOW,
    "modal": _MODAL,
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str  # the file that it is
    text: str

    def commands(self) -> Iterator[str]:
        """The commands of a shell's block, each in one line."""
        prompt = self.language != "sh"
        for line in self.text.replace("\\\n", " ").split("\n"):
            if line.strip() and (not prompt or line.startswith("$ ")):
                yield line.removeprefix("$ ") if prompt else line


def written(page: str) -> str:
    """The text of a page without the parts that scripts/reference.py makes from the code."""
    return re.sub(
        r"<!-- begin: (.+?) -->\n.*?<!-- end: \1 -->", "", PAGES[page].read_text(encoding="utf-8"), flags=re.DOTALL
    )


def blocks(page: str) -> list[Block]:
    """All of them, in their order. A session of the README has no language; elsewhere it is `console`."""
    found = [Block(*match.groups("")) for match in _FENCE.finditer(written(page))]
    return [Block(block.language or "console", block.title, block.text) for block in found]


@dataclass(frozen=True)
class Reader:
    """Somebody who follows a page in a folder, with loopback servers in place of all others."""

    shell: Shell
    model_server: Mapping[str, str]  # the variables that point to it
    more: Mapping[str, str]

    def follow(self, page: str) -> None:
        """Writes the page's files and runs all else, but what `READS` selects, in its order.

        A session prints what the page shows. Raises AssertionError at the first that fails.
        """
        binaries = self.shell.folder / "bin"
        binaries.mkdir()
        for name, source in COMMANDS.items():
            path = binaries / name
            path.write_text(f"#!{sys.executable}\n{source}")
            path.chmod(0o755)
        forks().write_command(binaries / "forked")
        for block in blocks(page):
            if block.title:
                path = self.shell.folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text)
            elif block.language == "console":
                self._check_session(block)
            elif block.language == "sh":
                self._run("\n".join(block.commands()))
            elif block.language == "python" and (page == LOGS or not READS.search(block.text)):
                self._run(f"python - <<'END'\n{block.text}\nEND")

    def _check_session(self, block: Block) -> None:
        folder = self.shell.folder
        (folder / "bin" / "session.md").write_text(f"```console\n{block.text}```\n")
        command = [sys.executable, "scripts/session.py", "--check", "--koderz", str(folder / "bin" / "forked")]
        command += ["--folder", str(folder), str(folder / "bin" / "session.md")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"scripts/session.py brings the pages up to date:\n{done.stdout}{done.stderr}"

    def _run(self, script: str) -> None:
        for shown, meant in SUBSTITUTES.items():
            script = script.replace(shown, meant)
        env = self.shell.environment({**self.model_server, **self.more})
        if not re.search("qwen|arms.toml", script):  # without a name, a running Ollama's only model would be asked
            env["OLLAMA_HOST"] = "127.0.0.1:9"
        env["PATH"] = f"{self.shell.folder / 'bin'}:{env['PATH']}"
        env["PYTHONPATH"] = os.pathsep.join([str(self.shell.folder / "installed"), str(ROOT)])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", f"set -x\n{script}"],
            cwd=self.shell.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
