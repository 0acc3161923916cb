"""Parts of ``bench/operator_scale.py``.

``cluster`` starts a control plane whose nodes and pods kwok plays; ``members`` counts running pods and plays their
agents; ``systems`` has the systems under test; ``scenario`` is one run; ``audit`` reads the API server's log;
``results`` has the figures, ``report`` goals and tables.
"""
