"""Shared by all commands: help, completion, output formats, spelling, the terminal."""
