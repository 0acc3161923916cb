"""One decision a module. Every function is pure: plain values in, plain values out, the time is an argument."""
