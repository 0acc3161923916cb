"""A guest beside the core: `elastrain audit` proves from the ranks' logs that every sample was used exactly once."""
