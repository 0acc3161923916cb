"""A read-only page about the jobs of a cluster: ``elastrain dashboard``, and a Deployment of the chart.
``elastrain run --dashboard`` (``local``) shows the job of this machine.

``facts`` selects the fields of the API server's objects that are kept (by :mod:`elastrain_resource.reflector`).
``history`` and ``timeline`` keep past values while the server runs. ``picture`` is the page's view of a job,
``accelerators`` of the cluster. ``board`` combines them and publishes changes; ``stream`` sends these to all browsers;
``server`` and ``assets`` answer requests. ``static/`` is the page: plain ES modules, without a build or external
resources.
"""
