"""Parts of ``bench/operator_scale.py``.

``cluster.py`` starts a control plane whose nodes and pods kwok plays; ``members.py`` sees pods run and plays their
agents; ``systems.py`` has what is measured; ``scenario.py`` is one run; ``report.py`` shows the figures.
"""
