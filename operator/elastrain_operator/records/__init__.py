"""Jobs' records and users in etcd: the mirror, its bounds, credentials, and what is deleted after a job."""
