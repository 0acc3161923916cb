"""Devices that workers claim (dynamic resource allocation), in the allocator's books."""
