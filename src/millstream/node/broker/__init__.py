"""The broker role, composed of the services of a node, and the APIs about the cluster as a whole."""
