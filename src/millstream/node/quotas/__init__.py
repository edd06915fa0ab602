"""Client quotas: rates of users, clients and addresses, and throttling. Arithmetic is in `core/`, which is pure."""
