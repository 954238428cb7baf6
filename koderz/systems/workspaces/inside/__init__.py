"""Programs beside a command in its sandbox: process 1, and what keeps a verifier's channel."""
