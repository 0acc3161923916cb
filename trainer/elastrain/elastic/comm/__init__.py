"""The connections of one generation, the sums over them (TCP, NCCL), and the watchdog."""
