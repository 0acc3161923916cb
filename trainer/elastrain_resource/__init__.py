"""What the operator and the command line share, and no worker loads: the resource, its schema, its rules."""
