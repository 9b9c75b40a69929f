"""The commands: arguments and options; what they do is called from here."""
