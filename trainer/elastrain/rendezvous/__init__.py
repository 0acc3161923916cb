"""Forms generations: pure decisions (``decide``) and the executor (``membership``)."""
