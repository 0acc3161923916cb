"""Shares the cluster out: values, placement, order of the jobs, cost of a change. All pure."""
