"""The controller role: decisions on the newest image, put through the quorum; sessions of brokers; its APIs."""
