"""The pure part of security: what credentials prove, and what ACLs allow."""
