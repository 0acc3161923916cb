"""Which samples a step trains on (``order``), how they reach a rank (``loader``), and the proof (``audit``)."""
