"""The commands for a cluster: they call :mod:`elastrain.client` and print text and tables."""
