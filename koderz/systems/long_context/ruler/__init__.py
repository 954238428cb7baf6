"""RULER: retrieval, tracing, counting and questions in made-up texts of any length.

Source: Hsieh et al., "RULER: What's the real context size of your long-context language models?" (2024),
github.com/NVIDIA/RULER. The texts of its prompts are data, which has to match; the code is koderz' own.
"""
