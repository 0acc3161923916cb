"""A page about the jobs of a cluster, which only reads: ``elastrain dashboard``, and a Deployment of the chart.

``reading`` asks the API server, ``feed`` keeps what it has of one resource, ``facts`` says what is kept of each
object; ``history`` and ``timeline`` remember what was, while the server runs; ``picture`` is what the page gets to
know of a job, ``accelerators`` of the cluster; ``board`` brings them together and says what has changed; ``stream``
tells it to all browsers, ``server`` and ``assets`` answer them. ``static/`` is the page: plain ES modules, no build,
nothing from outside.
"""
