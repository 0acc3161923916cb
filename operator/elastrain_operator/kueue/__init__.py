"""Jobs whose size Kueue decides: their Workloads, read and written; see docs/kueue.md."""
