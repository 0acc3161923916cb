"""The CustomResourceDefinition, made from the models of the resource."""
