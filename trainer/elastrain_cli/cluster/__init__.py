"""The commands for a cluster: they call :mod:`elastrain_cli.client` and print text and tables."""
