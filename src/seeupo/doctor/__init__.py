"""Checks of an installation: devices, packages, sandbox, and short tests of training and sampling."""
