"""One task per job: facts, plan, apply, wait. The only writers of pods, status and events."""
