"""Parts of ``bench/ettr.py``.

``trace`` (pure) draws the failures, ``systems`` has the systems under test, ``drive`` plays a trace to one of them,
``account`` (pure) splits its time, ``report`` makes tables of it.
"""
