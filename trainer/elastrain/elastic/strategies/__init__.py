"""How a model trains over the generation in force: replicated (DDP), bitwise."""
