"""The dashboard over a cluster that the test describes."""

from dashboard_fixtures import away, body, cluster, fake, manifest, running, stage

__all__ = ["away", "body", "cluster", "fake", "manifest", "running", "stage"]
