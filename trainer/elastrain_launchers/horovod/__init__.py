"""Horovod Elastic in an elastic job: ``python -m elastrain_launchers.horovod python train.py``.

Each worker runs a *node* in the place of a rank (:mod:`.node`). It outlives generations, and so do the Horovod
processes that it starts (:mod:`.programs`). The node of a generation's first member also runs the *launcher*
(:mod:`.launcher`): Horovod's elastic driver, which finds its hosts in the members of the generation and asks their
nodes for processes over an authenticated connection (:mod:`.channel`).
"""
