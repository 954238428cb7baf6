"""BigCodeBench: practical tasks whose tests are unittest cases, and whose solutions use many libraries."""
