"""What an agent decides: events in, effects out. Pure."""
