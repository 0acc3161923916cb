"""The layouts of the pages of memory that an agent shares with its ranks."""
