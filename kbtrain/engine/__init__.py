"""Gates in front of vLLM: the answering model's states come from the engine that serves it."""
