"""``elastrain verify``: does a script train the same model, whatever happens to its workers?

The script runs several times, each time with one thing more than before, and records its state after each committed
step (``rank.record``). The first run is the reference (``rank.reference``). Pure functions plan the runs (``runs``),
find where two records part (``compare``), and name the kind of fault (``kinds``). ``command`` executes the runs. Only
``rank`` and ``numbers`` import torch.
"""
