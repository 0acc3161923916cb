"""``elastrain exec train.py``: a script written for ``torchrun``, unchanged, as an elastic job.

Names of torch are substituted before the script is imported, and values that its loops change are carried for it.
What cannot be kept is refused by name: a script runs as it would in N plain processes, or it does not run.
"""
