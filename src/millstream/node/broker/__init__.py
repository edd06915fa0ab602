"""The broker role, composed of the services of a node, and the APIs on the cluster as a whole."""
