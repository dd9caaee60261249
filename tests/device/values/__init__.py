"""Tests of `device/values`."""
