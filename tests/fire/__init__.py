"""Real processes, killed, starved of disk and fed by strangers: docs/reliability.md lists them."""
