"""The dashboard over a cluster that the test describes."""

from dashboard_fixtures import away, body, fake, running, stage

__all__ = ["away", "body", "fake", "running", "stage"]
