"""Parts of ``bench/sizes_on_cluster.py``.

``task`` is a job's work; ``simulated`` plays all jobs under a virtual clock; ``cluster`` runs them under the operator
on a control plane, with ``members`` as their agents; ``report`` compares both.
"""
