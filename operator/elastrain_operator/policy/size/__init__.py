"""How many workers a job has, which leave, which spares and replacements it gets. Pure."""
