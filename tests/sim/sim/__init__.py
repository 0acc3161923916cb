"""A deterministic simulation of a whole cluster: agents, ranks, rendezvous and operators under one simulated clock.

The decisions are those of the product, imported; only the world around them (etcd, API server, kubelet, network, time)
is made up here. A seed decides all that can vary, so it replays a run exactly. ``python -m sim --help`` runs it.
"""
