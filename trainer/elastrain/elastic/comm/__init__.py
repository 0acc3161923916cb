"""The connections of one generation and the sums over them: TCP, NCCL, gloo; the watchdog."""
