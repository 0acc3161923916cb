"""``numerics="bitwise"``: a strategy whose gradients are sums in a fixed order."""
