"""Mirroring, pure: definitions of links and mirror topics, what is to be changed, and how one partition follows."""
