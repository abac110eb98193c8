"""Helpers and test doubles; nothing here is collected as a test."""
