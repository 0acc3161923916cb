"""Parts of ``bench/steady_state.py``.

``case`` is what is compared, ``train`` the process that trains both variants in turns, ``drive`` runs one case,
``analysis`` (pure) computes figures from its blocks.
"""
