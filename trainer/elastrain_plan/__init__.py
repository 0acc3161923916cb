"""``elastrain plan``: how much of the paid time a job will train, by an analytic model, and the settings that follow.

The core imports none of it. ``model`` is the split of the paid time, ``choose`` the settings that lose least of it,
``record`` what a job has measured itself, ``app`` the command. All but ``app`` is pure.
"""
