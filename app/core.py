"""Builds the one Faust application. Imports no agent."""
