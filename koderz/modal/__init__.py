"""The Modal engine: its app, its containers, its sandbox, its workspaces, its administration."""
