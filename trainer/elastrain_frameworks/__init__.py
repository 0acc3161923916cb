"""Other frameworks' training loops on an elastic job (docs/integrations.md). Each module imports its framework, an
optional dependency; this package imports none."""
