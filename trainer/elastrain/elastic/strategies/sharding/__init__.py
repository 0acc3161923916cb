"""Models that are spread over the ranks of a group: what FSDP2, DTensor and a mesh need of a generation."""
