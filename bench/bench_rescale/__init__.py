"""Parts of ``bench/rescale.py``.

``events`` lists what can happen, ``systems`` has the systems under test, ``train_*`` the script of every rank,
``scenario`` one run. ``analysis``, ``history``, ``growth`` and ``goals`` (pure) compute figures from the step logs,
``report`` makes tables of them.
"""
