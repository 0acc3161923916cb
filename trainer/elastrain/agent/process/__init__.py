"""Ranks as processes: the zygote, forks, signals, heartbeat pages."""
