"""What all benchmarks share: facts about the machine, processes, statistics, tables, and the command line.

``agents`` runs elastrain's agents with a real etcd; ``workload`` is the model that most benchmarks train.
"""
