"""A rank's place in the job: the link to its agent, generations, the switch from one to the next."""
