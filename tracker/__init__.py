"""Records experiments, and knows nothing of models, prompts or sandboxes."""
