"""What a caller of the gateway may do and see: roles, masked values, permissions on subjects. Pure; no I/O."""
