"""What all commands share: help, completion, output formats, spelling, the terminal."""
