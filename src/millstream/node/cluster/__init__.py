"""This node as a member of its cluster: registration, metadata, requests to the controller and to other brokers."""
