"""The cluster's metadata: records, the immutable image they make, and the controller's decisions as pure functions."""
