"""`koderz helps`: does a skill, an MCP server, a context file, a memory or a system prompt help an agent?"""
