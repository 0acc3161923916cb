module elastrain.dev/e2e/nodetools

go 1.25.0
