"""What ``bench/leaks.py`` is made of: what rescales leave behind in the processes that live through them.

``leader`` plays the agents and the leader for real ranks, ``train`` is what those run, ``cycles`` what happens to them,
``footprint`` looks at processes from outside, ``analysis`` (pure) judges the series.
"""
