"""The cached pool of weak teachers."""
