"""Sessions of code in WASM; koderz does the work."""
