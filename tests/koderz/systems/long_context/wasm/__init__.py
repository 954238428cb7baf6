"""Sessions, in WASM and natively."""
