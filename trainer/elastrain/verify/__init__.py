"""``elastrain verify``: does a script train the same model, whatever happens to its workers?

The script runs several times, each time with one thing more than before, and records its state after each committed
step (:mod:`~elastrain.verify.record`). The first run is the reference (:mod:`~elastrain.verify.reference`). Pure
functions plan the runs (:mod:`~elastrain.verify.runs`), find where two records part
(:mod:`~elastrain.verify.compare`), and name the kind of fault (:mod:`~elastrain.verify.kinds`).
``elastrain.cli.verify`` executes the runs. Only the modules that run in a training process import torch.
"""
