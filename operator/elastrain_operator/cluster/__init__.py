"""The cluster as the allocator sees it: nodes, what holds their room, and one task that shares them out."""
