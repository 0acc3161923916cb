"""Parts of ``bench/checkpoint.py``.

``systems`` are what is measured, ``run`` trains and restarts one of them, ``analysis`` (pure) computes figures from the
steps that a run committed and the moments at which its checkpoints were complete.
"""
