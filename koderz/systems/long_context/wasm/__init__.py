"""Sessions: interpreters that keep their variables between cells of code, in WASM or contained natively.

A cell never runs in koderz' own process: `session` keeps workers, each with an instance a session, and the log by which
a session is rebuilt wherever its instance or worker has died. `manager` offers sessions over HTTP.
"""
