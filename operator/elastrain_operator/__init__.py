"""The elastrain operator: observe -> plan -> apply, one loop per ElasticTrainingJob."""
