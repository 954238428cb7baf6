"""OOLONG: questions whose answers have to be aggregated from every line of a long text.

Source: Bertsch et al., "Oolong: Evaluating long context reasoning and aggregation capabilities" (2025),
github.com/abertsch72/oolong.
"""
