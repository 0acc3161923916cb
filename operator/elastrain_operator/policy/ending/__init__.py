"""Whether a job has ended, how, and what is deleted then. Pure."""
