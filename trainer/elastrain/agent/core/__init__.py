"""An agent's decisions: events in, effects out. Pure."""
