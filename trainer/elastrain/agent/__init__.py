"""The agent: PID 1 of a worker. It registers the member, runs the ranks and passes generations on to them.

``core`` decides and ``runtime`` executes, in terms of ``core/events``. No module imports torch, so that an agent starts
in a fraction of a second and stays small.
"""
