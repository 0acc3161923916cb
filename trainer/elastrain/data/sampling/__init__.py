"""Which samples an epoch has: samplers as functions of (epoch, position), and torch's own read as such."""
