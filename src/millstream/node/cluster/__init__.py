"""This node as a member of its cluster: registration, the view of the metadata, requests to controller and peers."""
