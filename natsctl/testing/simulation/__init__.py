"""Simulates controllers through thousands of schedules, and finds what happens on a bad day."""
