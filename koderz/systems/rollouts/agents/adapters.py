"""The interface of adapters for agents' command lines, and those of codex, claude-code, aider and mini-swe-agent.

codex uses /v1/responses, and claude-code /v1/messages. aider and mini-swe-agent use /v1/chat/completions and print text
for people.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from koderz.errors import KoderzError
from koderz.settings.systems import names_of, required
from koderz.systems.rollouts.additions import KINDS, Addition, told_of
from koderz_tracker.registry import find

ACP = "acp:"
"""How the name of an agent begins that speaks the Agent Client Protocol; its command follows."""

# loaded when it is used: it has adapters, too
_MAKER = {ACP: "koderz.systems.rollouts.agents.acp:AcpAgent"}

ANY = frozenset(KINDS.values())
_OWN = ("koderz", "scripted", "oracle", "nop")
"""koderz' own agents, which are given additions of every kind; only the first reads them by itself."""

# What fails here ends as a program that can't be started, since an agent without its arm would be another arm's.
_LAYING = """while [ "$1" != -- ]; do
  case $1 in
  copy) mkdir -p "$3" && cp -R "$2/." "$3" ;;
  write) mkdir -p "${3%/*}" && printf '%s\\n' "$2" > "$3" ;;
  esac || exit 127
  shift 3
done
shift
exec "$@"
"""


class Dirs(NamedTuple):
    """The places in an agent's sandbox."""

    program: str  # its own executable
    home: str  # a folder of its own, which is empty
    workdir: str  # the repository, in which it begins
    url: str  # of the bridge, without /v1
    token: str  # the key to it
    # of the kinds that the adapter takes, with their paths there
    additions: tuple[Addition, ...] = ()

    def texts(self, *kinds: str) -> str:
        """The texts of additions of these kinds, one after the other."""
        return "\n\n".join(
            each.text.strip() for kind in kinds for each in self.additions if each.kind == kind
        )

    @property
    def servers(self) -> Mapping[str, Mapping[str, Any]]:
        """The MCP servers that the agent is given, by name."""
        return {each.bare_name: each.server for each in self.additions if each.kind == "mcp"}


class Event(NamedTuple):
    """An event of an agent's work, as the agent reports it."""

    kind: str  # "tool", "message", "reasoning", "error" or "end"
    text: str = ""


class Package(NamedTuple):
    """A program and the folders that it needs to run."""

    program: str
    folders: tuple[str, ...]


class Adapter(Protocol):
    """An adapter for an agent's command line."""

    install: str  # the command that installs it

    def find(self) -> Package | None:
        """The installed program; None if it isn't installed."""
        ...

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command to run, and its environment."""
        ...

    def events(self, line: str) -> Iterable[Event]:
        """The events in a line that the agent prints."""
        ...


@runtime_checkable
class VersionedAdapter(Adapter, Protocol):
    """An adapter for a program that prints its version with arguments other than `--version`."""

    version_arguments: Sequence[str]


@runtime_checkable
class AddingAdapter(Adapter, Protocol):
    """An adapter for an agent that takes skills, servers or texts beyond its task, of the kinds of `Addition`."""

    takes: Collection[str]


def require_taken(agent: str, additions: Iterable[Addition], where: str = "") -> None:
    """Raises KoderzError that names the first addition which an agent can't be given."""
    takes: Collection[str] = ()
    if agent in names_of("agents") or agent.startswith(ACP):
        adapter = adapter_of(agent)
        takes = adapter.takes if isinstance(adapter, AddingAdapter) else ()
    elif agent in _OWN:
        takes = ANY
    for each in additions:
        kind = each.kind.replace("_", " ")
        if each.kind not in takes:
            known = ", ".join(sorted(takes)).replace("_", " ") or "nothing beyond its task"
            raise KoderzError(
                f"{where}the agent {agent} can't be given {each.name} ({kind}); it takes {known}: "
                "name another agent, or leave it out"
            )
        if agent == "koderz" and each.inside and "url" in each.server:
            raise KoderzError(
                f"{where}{each.name} is reached by HTTP from within the sandbox: name another agent"
            )
        if each.kind == "memory" and not each.text and agent not in _OWN[1:]:
            raise KoderzError(
                f"{where}{each.name}: the agent {agent} takes a memory that is a file of text"
            )


def laid_out(
    argv: Sequence[str], dirs: Dirs, *, skills: str = "", texts: Mapping[str, str]
) -> list[str]:
    """The command, before which the skills are copied into the folder `skills`, and texts written to files.

    An agent writes into its configuration, so that it has copies.
    """
    words = []
    for each in dirs.additions:
        if each.kind == "skill":
            words += ["copy", each.path, skills if each.inside else f"{skills}/{each.bare_name}"]
    for path, text in texts.items():
        words += ["write", text, path] if text else []
    return ["sh", "-c", _LAYING, "sh", *words, "--", *argv]


def adapter_of(name: str) -> Adapter:
    """The adapter with this name, or for `acp:COMMAND`. Raises KoderzError for an unknown one."""
    is_acp = name.startswith(ACP)
    found: Adapter = (
        find("agent", ACP, _MAKER, "")(name.removeprefix(ACP))
        if is_acp
        else required("agents", name)
    )
    return found


def version_command(adapter: Adapter, package: Package) -> Sequence[str]:
    """The command that prints the version of an adapter's program."""
    arguments = (
        adapter.version_arguments if isinstance(adapter, VersionedAdapter) else ("--version",)
    )
    return [package.program, *arguments]


def npm_package(name: str, pattern: str, *, up: int = 0) -> Package | None:
    """The native program of an npm package whose command is in PATH, found by `pattern` near its folder.

    `up`: how many folders above that of the program are needed. A program that is no package's is taken as it is.
    """
    found = shutil.which(name)
    if found is None:
        return None
    path = Path(found).resolve()
    scopes = [
        folder
        for folder in path.parents
        if folder.name.startswith("@") and folder.parent.name == "node_modules"
    ]
    native = [
        each
        for scope in scopes
        for each in (*scope.glob(pattern), *scope.glob(f"*/node_modules/*/{pattern}"))
    ]
    program = next(iter(sorted(native)), path)
    return Package(str(program), (str(program.parents[up] if native else program),))


def python_package(name: str) -> Package | None:
    """A Python program in PATH, with its environment and the interpreter behind that."""
    found = shutil.which(name)
    if found is None:
        return None
    program = Path(found).resolve()
    with program.open("rb") as file:
        first = file.readline(4096).decode("utf-8", "replace").strip()
    interpreter = Path(first.removeprefix("#!").split(" ")[0])
    folders = {str(program)}
    if interpreter.name.startswith("python"):
        folders |= {
            str(path.parent.parent) for path in (interpreter, Path(os.path.realpath(interpreter)))
        }
    return Package(str(program), tuple(sorted(folders)))


def parsed(line: str) -> dict[str, Any]:
    """The object in a line of JSON; empty for any other line."""
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_CODEX_TOOLS = {
    "command_execution": "command",
    "mcp_tool_call": "tool",
    "file_change": "status",
    "web_search": "query",
}

_CODEX_KEYS = {"headers": "http_headers"}  # of a server, by what others call them


def bridged_codex(url: str) -> list[str]:
    """The arguments by which codex asks the bridge."""
    own = (
        f'{{name="koderz",base_url="{url}/v1",env_key="KODERZ_BRIDGE_TOKEN",wire_api="responses"}}'
    )
    return ["-c", 'model_provider="koderz"', "-c", f"model_providers.koderz={own}"]


class Codex:
    """The adapter for codex, see `Adapter`."""

    install = "npm install --global @openai/codex"
    takes = ANY

    def find(self) -> Package | None:
        return npm_package("codex", "codex-*/vendor/*/bin/codex", up=1)

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        settings = bridged_codex(dirs.url)
        freely = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        for name, server in dirs.servers.items():
            table = {
                _CODEX_KEYS.get(key, key): value for key, value in server.items() if key != "type"
            }
            settings += ["-c", f"mcp_servers.{name}={_toml(table)}"]
        if prompt_of_arm := dirs.texts("system_prompt"):
            settings += ["-c", f"developer_instructions={_toml(prompt_of_arm)}"]
        argv = [dirs.program, "exec", "--json", *freely, *settings, "-m", model, "--", prompt]
        texts = {f"{dirs.home}/AGENTS.md": dirs.texts("context", "memory")}
        return laid_out(argv, dirs, skills=f"{dirs.home}/skills", texts=texts), {
            "CODEX_HOME": dirs.home
        }

    def events(self, line: str) -> Iterator[Event]:
        said = parsed(line)
        item = said.get("item") or {}
        kind = item.get("type") if said.get("type") == "item.completed" else None
        if kind in _CODEX_TOOLS:
            server = f"mcp__{item.get('server')}__" if kind == "mcp_tool_call" else ""
            yield Event("tool", f"{server}{item.get(_CODEX_TOOLS[kind], '')}")
        elif kind in ("agent_message", "reasoning"):
            yield Event("message" if kind == "agent_message" else kind, str(item.get("text", "")))
        elif said.get("type") == "turn.failed":
            yield Event("error", str((said.get("error") or {}).get("message", "")))
        elif said.get("type") == "turn.completed":
            yield Event("end")


def _toml(value: Any) -> str:
    """A value as TOML has it, whose strings are written as those of JSON."""
    if isinstance(value, Mapping):
        return (
            "{" + ",".join(f"{json.dumps(key)}={_toml(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return "[" + ",".join(map(_toml, value)) + "]"


codex = Codex()


# The repository's own servers are part of the task in every arm. It reads them itself, since it refuses to start with
# a file that is named to it and broken, and takes no servers but those that it is given where the repository has none.
_CLAUDE_BEGINS = '[ -f .mcp.json ] || set -- "$@" --strict-mcp-config; exec "$@"'


class ClaudeCode:
    """The adapter for claude-code, see `Adapter`."""

    install = "npm install --global @anthropic-ai/claude-code"
    takes = ANY

    def find(self) -> Package | None:
        return npm_package("claude", "claude-code-linux-*/claude")

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        freely = ("--permission-mode", "bypassPermissions")
        told = ("--output-format", "stream-json", "--verbose", "--max-turns", "200")
        argv = [
            "sh",
            "-c",
            _CLAUDE_BEGINS,
            "sh",
            dirs.program,
            "-p",
            prompt,
            *told,
            *freely,
            "--model",
            model,
        ]
        if prompt_of_arm := dirs.texts("system_prompt"):
            argv += ["--append-system-prompt", prompt_of_arm]
        argv += ["--mcp-config", json.dumps({"mcpServers": dirs.servers})]
        own = f"{dirs.home}/.claude"
        texts = {f"{own}/CLAUDE.md": dirs.texts("context", "memory")}
        return laid_out(argv, dirs, skills=f"{own}/skills", texts=texts), {
            "ANTHROPIC_BASE_URL": dirs.url,
            "ANTHROPIC_API_KEY": dirs.token,
            "CLAUDE_CONFIG_DIR": own,
            # All tools are offered at once in every arm: a model that knows no ToolSearch would never find a server's.
            "ENABLE_TOOL_SEARCH": "false",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }

    def events(self, line: str) -> Iterator[Event]:
        said = parsed(line)
        if said.get("type") == "result":
            yield (
                Event("error", str(said.get("result", "")))
                if said.get("is_error")
                else Event("end")
            )
        if said.get("type") != "assistant":
            return
        for block in (said.get("message") or {}).get("content") or ():
            if block.get("type") == "tool_use":
                yield Event("tool", f"{block.get('name')} {json.dumps(block.get('input'))}")
            elif block.get("type") in ("text", "thinking"):
                yield Event(
                    "message" if block["type"] == "text" else "reasoning", str(block[block["type"]])
                )


claude_code = ClaudeCode()


# Its map of a repository lies in the repository, where it is to be no part of the diff; nor is a repository of its own.
_AIDER_BEGINS = """
if git rev-parse --git-dir >/dev/null 2>&1
then for n in 3 4 5 6; do mkdir -p .aider.tags.cache.v$n; echo "*" > .aider.tags.cache.v$n/.gitignore; done
else set -- "$@" --no-git
fi
exec "$@"
"""


class Aider:
    """The adapter for aider, see `Adapter`."""

    install = "pip install aider-chat"
    takes = frozenset({"context", "memory"})

    def find(self) -> Package | None:
        return python_package("aider")

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        quietly = (
            *(
                "--no-auto-commits",
                "--no-stream",
                "--no-check-update",
                "--analytics-disable",
                "--no-pretty",
            ),
            *("--no-gitignore", "--no-show-model-warnings", "--no-show-release-notes"),
        )
        own = (
            f"--chat-history-file={dirs.home}/chat.md",
            f"--input-history-file={dirs.home}/input",
        )
        asked = (f"--model=openai/{model}", f"--message={prompt}")
        argv = [
            "bash",
            "-c",
            _AIDER_BEGINS,
            "bash",
            dirs.program,
            "--yes-always",
            *quietly,
            *own,
            *asked,
        ]
        if text := dirs.texts("context", "memory"):
            conventions = f"{dirs.home}/CONVENTIONS.md"
            argv = laid_out([*argv, "--read", conventions], dirs, texts={conventions: text})
        address = f"{dirs.url}/v1"
        return argv, {
            "OPENAI_API_BASE": address,
            "OPENAI_API_KEY": dirs.token,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def events(self, line: str) -> Iterator[Event]:
        if line.startswith(("Applied edit to ", "Running ")):
            yield Event("tool", line.strip())
        elif line.startswith("litellm."):
            yield Event("error", line.strip())


aider = Aider()


# mini-swe-agent's own
_MINI_SYSTEM = "You are a helpful assistant that can interact with a computer."


class MiniSweAgent:
    """The adapter for mini-swe-agent, see `Adapter`."""

    install = "pip install mini-swe-agent mcp"
    takes = ANY - {"mcp"}
    version_arguments = ("--help",)  # it greets with its version, and has no other way to say it

    def find(self) -> Package | None:
        return python_package("mini")

    def command(
        self, prompt: str, model: str, dirs: Dirs
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        argv = [
            dirs.program,
            "-y",
            "--exit-immediately",
            "-m",
            f"openai/{model}",
            "-t",
            prompt,
            "-o",
            "/tmp/run.json",  # noqa: S108
        ]
        if text := told_of(dirs.additions):
            # it is a template of Jinja
            system = f"{_MINI_SYSTEM}\n\n{text}".replace("{", "{{'{'}}")
            argv += ["-c", "mini.yaml", "-c", f"agent.system_template={json.dumps(system)}"]
        return argv, {
            "OPENAI_BASE_URL": f"{dirs.url}/v1",
            "OPENAI_API_BASE": f"{dirs.url}/v1",
            "OPENAI_API_KEY": dirs.token,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }

    def events(self, line: str) -> Iterator[Event]:
        if line.startswith("mini-swe-agent (step "):
            yield Event("tool", line.strip())


mini_swe_agent = MiniSweAgent()
