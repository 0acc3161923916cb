"""Sizes of a job, as rules that its own runtime, local mode and the operator share. Pure: no torch, no numpy."""
