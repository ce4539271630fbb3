"""Scanning the text of any log: opened, decompressed, cleaned, in blocks of whole lines."""
