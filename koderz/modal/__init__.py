"""The Modal engine: its app, containers, sandbox, workspaces and administration."""
