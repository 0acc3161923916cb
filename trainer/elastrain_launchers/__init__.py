"""Programs with restart semantics: one process per generation (mpirun, TensorFlow, any command)."""
