"""Values as bytes for other ranks: typed and bounded, and decoded without running code that they name."""

from elastrain.elastic.encoding.leaves import Malformed
from elastrain.elastic.encoding.values import NotEncodable, decode, encode

__all__ = ["Malformed", "NotEncodable", "decode", "encode"]
