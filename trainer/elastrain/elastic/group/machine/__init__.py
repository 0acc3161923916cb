"""A rank's place in its job as one state machine: events in, effects out. Pure."""
