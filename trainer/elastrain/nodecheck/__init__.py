"""All-reduce between pairs of nodes before they train: which node's network is sick, told apart from its partners'."""
