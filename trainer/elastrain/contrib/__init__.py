"""Programs with restart semantics: a process for each generation (mpirun, TensorFlow, any command)."""
