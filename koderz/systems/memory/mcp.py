"""`koderz mcp`: memory and runs for agents, by the Model Context Protocol."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from koderz.cli.groups import PanelCommand, new_group
from koderz.errors import KoderzError
from koderz.streams import leave_at_once
from koderz.systems.memory.commands import Embeddings, Http, Results, TokenEnv, serve_store

if TYPE_CHECKING:
    from mcp.server import Server

    from koderz.systems.memory.mcp_tools import Desk
    from koderz_tracker.memory import Cortex


app = new_group("Serve memory and runs to agents.", examples=["koderz mcp serve"])
app.callback()(lambda: None)  # with which the one command keeps its name

_INSTRUCTIONS = (
    "koderz measures how well language models solve tasks. Before an experiment ask recall whether it was tried, and "
    "plan what it costs; afterwards compare_runs says whether B is better, with an interval. A fault is never the "
    "model's doing: retry it. Say no rate without its interval. Answers have at most 25,000 characters unless "
    "maxCharacters asks for more; what has a cursor goes on. "
)
_NO_RUNS = "Runs can't be begun here; a person can allow it by --allow-runs --max-cost DOLLARS."
_RUNS = "run, decide, resume and retry answer with a run's id at once; show_run follows it. All spend of one allowance."
_URI = "koderz://runs/"
_LISTED = 50  # resources
_PROMPTS = {
    "is_it_better": """\
Is {b} better than {a} on {suite}? Ask list_runs and recall whether that was measured; else plan it, and use decide. \
Report the verdict of compare_runs with its interval, and the cost.""",
    "find_regression": """\
What got worse from run {before} to run {after}, and why? Use compare_runs, and failures of both runs for each lost \
task. Say which causes explain the losses, and what could be noise by the interval.""",
}


@app.command(cls=PanelCommand)
def serve(
    allow_runs: Annotated[
        bool,
        typer.Option(
            "--allow-runs", help="Let clients begin runs, which costs money: up to --max-cost."
        ),
    ] = False,
    max_cost: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            min=0,
            max=1e9,
            help="What all runs of clients may cost in this results folder, restarts of the server included.",
        ),
    ] = None,
    http: Http = None,
    token_env: TokenEnv = None,
    embeddings: Embeddings = None,
    results: Results = None,
) -> None:
    """Serve memory and runs to Claude Code, Codex and others as an MCP server, until the client disconnects.

    Clients read and plan. Only with --allow-runs do they begin runs, which go on when the server ends.
    docs/how-to/agents.md says how to configure clients.

    Examples:
        koderz mcp serve
        koderz mcp serve --allow-runs --max-cost 5
    """
    # what was stored is durable, and a thread that reads standard input can't be cancelled
    leave_at_once()
    if allow_runs and max_cost is None:
        raise KoderzError(
            "--allow-runs needs a cap: add --max-cost DOLLARS, of all runs that clients begin"
        )
    if max_cost is not None and not allow_runs:
        raise KoderzError("--max-cost has no effect here: only --allow-runs reads it")
    from koderz.settings.layers import results_folder
    from koderz.systems.memory.allowance import Allowance
    from koderz.systems.memory.mcp_tools import Desk

    folder = results_folder(results)
    desk = Desk(folder, None if max_cost is None else Allowance(folder, max_cost))
    made = partial(make_server, desk=desk)
    serve_store(http, token_env, results, "memory and runs are", made, embeddings=embeddings)


def make_server(cortex: Cortex, desk: Desk) -> Server[Any]:
    """A server of the memory's tools and those for the runs at `desk`."""
    from koderz.systems.memory import server
    from koderz.systems.memory.mcp_runs import SPENDING
    from koderz.systems.memory.mcp_tools import READING, RunTool
    from koderz.systems.memory.tools import TOOLS, Tool, by_name

    async def work(tool: Tool) -> Any:
        return await (tool.work(desk) if isinstance(tool, RunTool) else tool.call(cortex))

    return server.make_server(
        cortex,
        {**TOOLS, **by_name((*READING, *(SPENDING if desk.allowance else ())))},
        work,
        name="koderz",
        instructions=_INSTRUCTIONS + (_RUNS if desk.allowance else _NO_RUNS),
        **_resources(desk),
        **_prompts(),
    )


def _resources(desk: Desk) -> dict[str, Any]:
    """The runs as resources of MCP."""
    import mcp_types as types

    from koderz.systems.memory.mcp_tools import ListRuns, ShowRun
    from koderz.systems.memory.tools import text_of

    async def listed(_context: Any, _params: Any) -> types.ListResourcesResult:
        found = await ListRuns(limit=_LISTED).work(desk)
        about = {
            row["run_id"]: f"{row['mode']} · {row['suite']} · {row['model']}"
            for row in found["runs"]
        }
        runs = [
            types.Resource(uri=f"{_URI}{run}", name=run, description=text)
            for run, text in about.items()
        ]
        return types.ListResourcesResult(resources=runs)

    async def templates(_context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template=f"{_URI}{{run}}", name="run", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(
        _context: Any, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        try:
            text = text_of(await ShowRun(run=uri.removeprefix(_URI)).work(desk))
        except KoderzError as error:
            text = orjson.dumps({"error": str(error)}).decode()
        content = types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    return {
        "on_list_resources": listed,
        "on_list_resource_templates": templates,
        "on_read_resource": read,
    }


def _prompts() -> dict[str, Any]:
    """The prompts of MCP; their arguments are the words that they leave open."""
    import mcp_types as types

    async def listed(_context: Any, _params: Any) -> types.ListPromptsResult:
        words = {name: re.findall(r"{(\w+)}", text) for name, text in _PROMPTS.items()}
        prompts = [
            types.Prompt(
                name=name,
                description=_PROMPTS[name].partition("?")[0],
                arguments=[types.PromptArgument(name=word, required=True) for word in words[name]],
            )
            for name in _PROMPTS
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def got(_context: Any, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        said = defaultdict(lambda: "(say which)", params.arguments or {})
        text = _PROMPTS.get(params.name, f"There is no prompt {params.name}.").format_map(said)
        message = types.PromptMessage(
            role="user", content=types.TextContent(type="text", text=text)
        )
        return types.GetPromptResult(messages=[message])

    return {"on_list_prompts": listed, "on_get_prompt": got}
