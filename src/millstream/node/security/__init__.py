"""Security of a node: authentication, ACLs, delegation tokens, audit. Decisions are in `core/`, which is pure."""
