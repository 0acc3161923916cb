"""What ``bench/rescale.py`` is made of: what a rescale costs a training job, measured from outside.

``workload`` and ``train_*`` are what is trained, ``systems`` who trains it, ``scenario`` what happens to it,
``analysis`` (pure) what that cost, ``results`` the figures as types, ``report`` the figures for people.
"""
