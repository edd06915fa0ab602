"""The cluster's metadata: records, the immutable image, and the controller's decisions as pure functions."""
