"""Jobs and worker pods, watched and parsed into frozen values. The only parser of pods and jobs."""
