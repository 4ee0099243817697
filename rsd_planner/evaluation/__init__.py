"""Bags and what is measured on them."""
