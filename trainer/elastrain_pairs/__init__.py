"""All-reduce between pairs of nodes before training, which separates a faulty network from its partners' networks."""
