"""What one GPU can show, in nine minutes: ``make gpu`` (docs/sharded.md)."""
