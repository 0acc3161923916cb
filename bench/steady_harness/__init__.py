"""What ``bench/steady_state.py`` is made of: what elastrain costs while nothing happens, beside plain DDP.

``case`` is what is compared, ``train`` the process that trains both in turns, ``analysis`` (pure) from its blocks to
figures, ``profile`` (pure) where the difference goes.
"""
