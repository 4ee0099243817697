"""The processes of the stack."""
