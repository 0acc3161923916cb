"""Conditions, events and figures of a job's status. Pure."""
