"""Sharing the cluster out, in parts: values, what fits where, who comes next, whether a change pays. All pure."""
