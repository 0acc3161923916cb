"""What scripts import for another framework's loop (docs/integrations.md); the code is beside the core, in
:mod:`elastrain_frameworks`. Each module imports its framework, an optional dependency; this package imports none."""
