"""Records of a topic for people: reading, filtering, showing, and writing one."""
