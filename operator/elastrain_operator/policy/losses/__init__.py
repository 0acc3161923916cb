"""Lost workers: causes, budgets, pauses, excluded nodes, late starts. Pure."""
