"""A guest beside the core: `elastrain convert` proposes the change of a training script to an elastic one."""
